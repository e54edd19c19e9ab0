"""Operations of several calls: following a session's events, waiting for it, uploading a folder of traces."""

import hashlib
import time
from pathlib import Path

import httpx

from asap_client.calls import (
    PASSING,
    SESSIONS,
    TRIES,
    Pause,
    Steps,
    complete_trace,
    create_trace,
    get_session,
    get_trace,
    path,
    pause_s,
    put_part,
    sent,
)
from asap_client.errors import ProblemError, UnreachableError, WaitError
from asap_client.models import Event, SessionWithRequest, TraceWithFiles
from tools.errors import InputError
from tools.trace.folder import is_trace_name

MEDIA_TYPE = "text/event-stream"
NOTHING_MORE = 204
SILENCE_S = 30.0
"""The server sends a comment every 10 s: a longer silence is a dead connection."""


class Follower:
    """Fed with the lines of one connection after another; knows from which event the next must go on."""

    def __init__(self, id: str, after: int = 0) -> None:
        self.address = f"{SESSIONS}/{path(id)}/events"
        self.is_done = False
        self._seen, self._failures, self._data = after, 0, ""

    @property
    def headers(self) -> dict[str, str]:
        return {"Accept": MEDIA_TYPE, "Last-Event-ID": str(self._seen)}

    @property
    def timeout(self) -> httpx.Timeout:
        return httpx.Timeout(10.0, read=SILENCE_S)

    def accepts(self, response: httpx.Response) -> bool:
        """Whether there are lines to read; where not, the body has been read and says why."""
        self._data = ""
        if response.status_code == NOTHING_MORE:
            self.is_done = True
        elif response.is_error:
            if response.status_code not in PASSING:
                raise ProblemError.of(response)
            self.fail(response)
        return response.is_success and not self.is_done

    def feed(self, line: str) -> Event | None:
        """The event that ends with this line; the fields but `data` repeat what stands in it."""
        if line.startswith("data:"):
            self._data += line.removeprefix("data:").removeprefix(" ")
        if line or not self._data:
            return None
        event, self._data = Event.model_validate_json(self._data), ""
        if event.seq <= self._seen:
            return None
        self._seen, self._failures = event.seq, 0
        return event

    def fail(self, cause: httpx.Response | httpx.TransportError) -> None:
        """Raises when nothing has come of so many connections in a row."""
        self._failures += 1
        if self._failures >= TRIES:
            if isinstance(cause, httpx.Response):
                raise ProblemError.of(cause)
            raise UnreachableError("GET", self.address, cause)

    @property
    def pause_s(self) -> float:
        return pause_s(max(1, self._failures))


PART_BYTES = 8 << 20
FIRST_LOOK_S, LAST_LOOK_S = 0.1, 2.0
WAITING = "waiting_approval"
CONFLICT = 409


def waited(id: str, timeout_s: float | None) -> Steps[SessionWithRequest]:
    """Until the session is over or waits for a person; raises WaitError when the time is."""
    ends_at = None if timeout_s is None else time.monotonic() + timeout_s
    look_s = FIRST_LOOK_S
    while True:
        session = yield from sent(get_session(id))
        if session.is_over or session.state == WAITING:
            return session
        if ends_at is not None and time.monotonic() + look_s > ends_at:
            raise WaitError(f"session {id} is still {session.state} after {timeout_s:g} s")
        yield Pause(look_s)
        look_s = min(look_s * 1.5, LAST_LOOK_S)


def uploaded(folder: Path, name: str | None, into: str | None, part_bytes: int) -> Steps[TraceWithFiles]:
    """Every trace of a folder, in parts. `into` goes on with an upload that was broken off."""
    if not folder.is_dir():
        raise InputError("folder", str(folder), "must be a folder of traces")
    files = sorted(file for file in folder.iterdir() if file.is_file() and is_trace_name(file.name))
    if not files:
        raise InputError("folder", str(folder), "has no *.json, *.json.gz, *.sqlite or *.xplane.pb file")
    if into is None:
        into = (yield from sent(create_trace(folder.name if name is None else name))).id
    known = yield from sent(get_trace(into))
    arrived = {file.name: file.received_bytes for file in known.files}
    digests = {}
    for file in files:
        offset = min(arrived.get(file.name, 0), file.stat().st_size)
        yield from _put(into, file, offset, part_bytes)
        digests[file.name] = _digest(file)
    return (yield from sent(complete_trace(into, digests)))


def _put(id: str, file: Path, offset: int, part_bytes: int) -> Steps[None]:
    """At least once, so that an empty file is known too; to the end that the file has by then."""
    while True:
        try:
            part = yield from sent(put_part(id, file.name, offset, _part(file, offset, part_bytes)))
        except ProblemError as error:
            if error.status != CONFLICT or error.field != "offset" or offset == 0:
                raise
            offset = 0  # less has arrived than we thought: from the start, which replaces what is there
            continue
        offset = part.received_bytes
        if offset >= file.stat().st_size:
            return


def _part(file: Path, offset: int, most_bytes: int) -> bytes:
    with file.open("rb") as source:
        source.seek(offset)
        return source.read(most_bytes)


def _digest(file: Path) -> str:
    with file.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()
