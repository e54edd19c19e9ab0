"""A profile of a few training steps, uploaded by every rank into one trace of the server."""

import hashlib
import logging
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from asap_client.calls import Call, complete_trace, create_trace, put_part, submit
from asap_client.capture import SUMMARY_FOLDER, Capture, CaptureSchedule, capture
from asap_client.client import Client
from asap_client.events import PART_BYTES

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    rank: int = 0
    count: int = 1
    group: Any = None

    @classmethod
    def of_this_job(cls) -> "Ranks":
        """On gloo: it moves plain data, whichever backend the training uses."""
        from torch import distributed

        if not distributed.is_available() or not distributed.is_initialized():
            return cls()
        group = distributed.new_group(backend="gloo")
        return cls(distributed.get_rank(), distributed.get_world_size(), group)

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def told_by_first(self, value: T | None) -> T | None:
        """The first rank's value, at every rank."""
        if self.count == 1:
            return value
        from torch import distributed

        told = [value]
        distributed.broadcast_object_list(told, src=0, group=self.group)
        return told[0]

    def gathered(self, value: T) -> list[T]:
        """Every rank's value, in their order."""
        if self.count == 1:
            return [value]
        from torch import distributed

        found: list[Any] = [None] * self.count
        distributed.all_gather_object(found, value, group=self.group)
        return found


log = logging.getLogger("asap.profile")

PATIENCE_S = 20.0
"""With one call: all devices of the job stand still meanwhile."""


class ProfileUpload:
    """One profile of one run. `scenario` is submitted with it, as a session that explains the profile."""

    def __init__(
        self,
        server: str,
        key: str | None = None,
        *,
        name: str = "training",
        folder: str | Path = "asap-profile",
        schedule: CaptureSchedule | None = None,
        raw: bool = False,
        scenario: Mapping[str, Any] | None = None,
    ) -> None:
        self._client = Client(server, key)
        self._server, self._name, self._folder, self._raw = server.rstrip("/"), name, Path(folder), raw
        self._schedule, self._scenario = schedule or CaptureSchedule(), scenario
        self._steps_left = self._schedule.wait + self._schedule.warmup + self._schedule.active
        self._open = ExitStack()
        self._capture: Capture | None = None
        self.trace: str | None = None
        """What a request names as its `traces`, once the profile has arrived."""
        self.session: str | None = None
        """The id of the session that was submitted with it."""

    def start(self) -> None:
        """Before the first step; a trainer that begins again profiles no second time."""
        if self._steps_left == 0:
            return
        try:
            entering = capture(self._folder, self._schedule, keep_traces=self._raw)
            self._capture = self._open.enter_context(entering)
        except Exception:
            log.exception("the profiler could not be started")

    def step(self) -> None:
        """After every step of the optimizer."""
        if self._steps_left == 0:
            return
        self._steps_left -= 1
        try:
            if self._capture:
                self._capture.step()
        except Exception:
            log.exception("the profiler failed")
        if self._steps_left == 0:
            self._send_or_log()

    def finish(self) -> None:
        """After the last step: a run that was too short sends nothing."""
        if self._steps_left:
            log.warning("training ended %d steps before the profile was complete", self._steps_left)
            self._steps_left = 0
            self._files()
        self._client.close()

    def _send_or_log(self) -> None:
        try:
            self._send()
        except Exception:  # the ranks cannot talk to each other: no gloo, or one of them has died
            log.exception("the profile was not sent")

    def _send(self) -> None:
        """No rank may leave early: the others wait for it."""
        ranks, files = Ranks.of_this_job(), self._files()
        if not any(ranks.gathered(bool(files))):
            log.warning("no rank has a profile to send")
            return
        id = ranks.told_by_first(self._begun() if ranks.is_first else None)
        if id is None:
            return
        digests = {name: one[name] for one in ranks.gathered(self._sent(id, files)) for name in one}
        if ranks.is_first and digests:
            self._complete(id, digests)

    def _files(self) -> list[Path]:
        """What this rank has to send, when the profiler is closed."""
        try:
            self._open.close()
        except Exception:
            log.exception("the profile could not be written")
            return []
        trace = self._capture.trace_path if self._capture else None
        if trace is None:
            return []
        summary = self._folder / SUMMARY_FOLDER / trace.name.replace(".json.gz", ".summary.json")
        return [file for file in ([trace] if self._raw else [summary, trace]) if file.exists()][:1]

    def _asked(self, call: Call[T]) -> T:
        return self._client.send(replace(call, patience_s=PATIENCE_S))

    def _begun(self) -> str | None:
        try:
            return self._asked(create_trace(self._name)).id
        except Exception:
            log.exception("%s takes no profile", self._server)
            return None

    def _sent(self, id: str, files: list[Path]) -> dict[str, str]:
        try:
            return {file.name: self._send_file(id, file) for file in files}
        except Exception:
            log.exception("the profile of this rank was not sent")
            return {}

    def _send_file(self, id: str, file: Path) -> str:
        digest, offset = hashlib.sha256(), 0
        with file.open("rb") as source:
            while part := source.read(PART_BYTES):
                self._asked(put_part(id, file.name, offset, part))
                digest.update(part)
                offset += len(part)
        return digest.hexdigest()

    def _complete(self, id: str, digests: dict[str, str]) -> None:
        try:
            self.trace = self._asked(complete_trace(id, digests)).reference
            log.info("the profile of %d ranks is %s at %s", len(digests), self.trace, self._server)
            if self._scenario is not None:
                self.session = self._asked(submit({**self._scenario, "traces": self.trace}, None)).id
                log.info("%s/sessions/%s explains it", self._server, self.session)
        except Exception:
            log.exception("the profile was not taken in")
