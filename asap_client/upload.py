"""A profile of a few training steps, uploaded by every rank into one trace of the server."""

import logging
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from asap_client.capture import SUMMARY_FOLDER, Capture, CaptureSchedule, capture
from asap_client.client import Client
from asap_client.core import Body, Call
from asap_client.generated import calls
from asap_client.operations import put_steps

log = logging.getLogger("asap.profile")

PATIENCE_S = 20.0
"""Per call: all devices of the job are idle meanwhile."""

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    rank: int = 0
    count: int = 1
    group: Any = None

    @classmethod
    def of_this_job(cls) -> "Ranks":
        """Over gloo, which sends plain objects whatever backend the training uses."""
        from torch import distributed

        if not distributed.is_available() or not distributed.is_initialized():
            return cls()
        group = distributed.new_group(backend="gloo")
        return cls(distributed.get_rank(), distributed.get_world_size(), group)

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def broadcast(self, value: T | None) -> T | None:
        """The first rank's value, on every rank."""
        if self.count == 1:
            return value
        from torch import distributed

        values = [value]
        distributed.broadcast_object_list(values, src=0, group=self.group)
        return values[0]

    def all_gather(self, value: T) -> list[T]:
        """Every rank's value, in rank order."""
        if self.count == 1:
            return [value]
        from torch import distributed

        values: list[Any] = [None] * self.count
        distributed.all_gather_object(values, value, group=self.group)
        return values


class UploadOptions(TypedDict, total=False):
    """What callbacks pass on to `ProfileUpload`."""

    name: str
    folder: str | Path
    schedule: CaptureSchedule | None
    raw: bool
    scenario: Body | None


class ProfileUpload:
    """One profile of one run. `scenario`, if set, is submitted as a session that explains the profile."""

    def __init__(
        self,
        server: str,
        key: str | None = None,
        *,
        name: str = "training",
        folder: str | Path = "asap-profile",
        schedule: CaptureSchedule | None = None,
        raw: bool = False,
        scenario: Body | None = None,
    ) -> None:
        self._client = Client(server, key)
        self._server, self._name, self._folder, self._raw = server.rstrip("/"), name, Path(folder), raw
        self._schedule, self._scenario = schedule or CaptureSchedule(), scenario
        self._steps_left = self._schedule.total
        self._open = ExitStack()
        self._capture: Capture | None = None
        self.trace: str | None = None
        """The value for a request's `traces`, once the upload is complete."""
        self.session: str | None = None
        """Id of the session that was submitted with it."""

    def start(self) -> None:
        """Before the first step; a trainer that starts again is not profiled a second time."""
        if self._steps_left == 0:
            return
        try:
            entering = capture(self._folder, self._schedule, keep_traces=self._raw)
            self._capture = self._open.enter_context(entering)
        except Exception:
            log.exception("the profiler could not be started")

    def step(self) -> None:
        """After every optimizer step."""
        if self._steps_left == 0:
            return
        self._steps_left -= 1
        try:
            if self._capture:
                self._capture.step()
        except Exception:
            log.exception("the profiler failed")
        if self._steps_left == 0:
            try:
                self._send()
            except Exception:  # the ranks cannot communicate: no gloo, or one of them has died
                log.exception("the profile was not uploaded")

    def finish(self) -> None:
        """After the last step; a run that was too short uploads nothing."""
        if self._steps_left:
            log.warning("training ended %d steps before the profile was complete", self._steps_left)
            self._steps_left = 0
            self._files()
        self._client.close()

    def _send(self) -> None:
        """No rank may return early: the others would wait for it."""
        ranks, files = Ranks.of_this_job(), self._files()
        if not any(ranks.all_gather(bool(files))):
            log.warning("no rank has a profile to upload")
            return
        id = None
        if ranks.is_first:
            try:
                id = self._call(calls.create_trace(self._name)).id
            except Exception:
                log.exception("%s does not accept a profile", self._server)
        if (id := ranks.broadcast(id)) is None:
            return
        digests: dict[str, str] = {}
        try:
            for file in files:
                digests[file.name] = self._client.perform(put_steps(id, file, patience_s=PATIENCE_S))
        except Exception:
            log.exception("the profile of this rank was not uploaded")
        of_all = {name: digest for part in ranks.all_gather(digests) for name, digest in part.items()}
        if not ranks.is_first or not of_all:
            return
        try:
            self.trace = self._call(calls.complete_trace(id, of_all)).reference
            log.info("the profile of %d ranks is %s at %s", len(of_all), self.trace, self._server)
            if self._scenario is not None:
                self.session = self._call(calls.submit({**self._scenario, "traces": self.trace})).id
                log.info("%s/sessions/%s explains it", self._server, self.session)
        except Exception:
            log.exception("the upload of the profile was not completed")

    def _files(self) -> list[Path]:
        """Closes the profiler; what this rank has to upload."""
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

    def _call(self, call: Call[T]) -> T:
        return self._client.send(replace(call, patience_s=PATIENCE_S))
