"""Operations of several calls: following a session's events, waiting for its end, uploading traces.

No sockets here: `Client` and `AsyncClient` perform the steps.
"""

import hashlib
import json
import math
import time
from dataclasses import replace
from pathlib import Path

import httpx

from asap_client.core import MAX_ATTEMPTS, TRANSIENT, Pause, Steps, path, pause_s, send_steps
from asap_client.errors import InputError, ProblemError, UnreachableError, WaitError
from asap_client.generated import calls
from asap_client.generated.models import Event, SessionWithRequest, TraceWithFiles

MEDIA_TYPE = "text/event-stream"
NO_CONTENT, CONFLICT = 204, 409
READ_TIMEOUT_S = 30.0
"""The server sends a heartbeat comment every 10 s."""
CONNECT_TIMEOUT_S = 10.0
PART_BYTES = 8 << 20
FIRST_POLL_S, MAX_POLL_S = 0.1, 2.0
WAITING = "waiting_approval"
TRACE_SUFFIXES = (".json", ".json.gz", ".sqlite", ".sqlite3", ".xplane.pb")
OVERHEAD_SUFFIX = ".overhead.json"
"""Written beside summaries by `asap_client.capture`; not a trace."""


class Follower:
    """Parses the event stream over any number of connections, and knows where the next one must resume."""

    def __init__(self, id: str, after: int = 0) -> None:
        self.address = f"/v1/sessions/{path(id)}/events"
        self.is_done = False
        self._last_seq, self._failures, self._data = after, 0, ""

    @property
    def headers(self) -> dict[str, str]:
        return {"Accept": MEDIA_TYPE, "Last-Event-ID": str(self._last_seq)}

    @property
    def timeout(self) -> httpx.Timeout:
        return httpx.Timeout(CONNECT_TIMEOUT_S, read=READ_TIMEOUT_S)

    def accepts(self, response: httpx.Response) -> bool:
        """Whether there are lines to read. If not, the caller has read the body, which says why."""
        self._data = ""
        if response.status_code == NO_CONTENT:
            self.is_done = True
        elif response.is_error:
            if response.status_code not in TRANSIENT:
                raise ProblemError.from_response(response)
            self.fail(response)
        return response.is_success and not self.is_done

    def feed(self, line: str) -> Event | None:
        """The event that ends with this line; the fields other than `data` only repeat parts of it."""
        if line.startswith("data:"):
            self._data += line.removeprefix("data:").removeprefix(" ")
        if line or not self._data:
            return None
        event, self._data = Event.from_json(json.loads(self._data)), ""
        if event.seq <= self._last_seq:
            return None
        self._last_seq, self._failures = event.seq, 0
        return event

    def fail(self, cause: httpx.Response | httpx.TransportError) -> None:
        """Raises after MAX_ATTEMPTS connections in a row that brought no event."""
        self._failures += 1
        if self._failures >= MAX_ATTEMPTS:
            if isinstance(cause, httpx.Response):
                raise ProblemError.from_response(cause)
            raise UnreachableError("GET", self.address, cause)

    @property
    def pause_s(self) -> float:
        return pause_s(max(1, self._failures))


def wait_steps(id: str, timeout_s: float | None) -> Steps[SessionWithRequest]:
    """Until the session ends or waits for a decision; raises WaitError after `timeout_s`."""
    ends_at = None if timeout_s is None else time.monotonic() + timeout_s
    poll_s = FIRST_POLL_S
    while True:
        session = yield from send_steps(calls.session(id))
        if session.is_over or session.state == WAITING:
            return session
        if ends_at is not None and time.monotonic() + poll_s > ends_at:
            raise WaitError(f"session {id} is still {session.state} after {timeout_s:g} s")
        yield Pause(poll_s)
        poll_s = min(poll_s * 1.5, MAX_POLL_S)


def is_trace_name(name: str) -> bool:
    """Whether a file of this name is a trace, as the server decides it too."""
    return not name.startswith(".") and not name.endswith(OVERHEAD_SUFFIX) and name.endswith(TRACE_SUFFIXES)


def upload_steps(folder: Path, name: str | None, into: str | None, part_bytes: int) -> Steps[TraceWithFiles]:
    """Uploads every trace of a folder, in parts. `into` resumes an interrupted upload."""
    if not folder.is_dir():
        raise InputError("folder", str(folder), "must be a folder of traces")
    files = sorted(file for file in folder.iterdir() if file.is_file() and is_trace_name(file.name))
    if not files:
        raise InputError("folder", str(folder), "has no *.json, *.json.gz, *.sqlite or *.xplane.pb file")
    if into is None:
        into = (yield from send_steps(calls.create_trace(folder.name if name is None else name))).id
    existing = yield from send_steps(calls.trace(into))
    received = {file.name: file.received_bytes for file in existing.files}
    digests = {}
    for file in files:
        offset = min(received.get(file.name, 0), file.stat().st_size)
        digests[file.name] = yield from put_steps(into, file, offset, part_bytes)
    return (yield from send_steps(calls.complete_trace(into, digests)))


def put_steps(
    id: str, file: Path, offset: int = 0, part_bytes: int = PART_BYTES, patience_s: float = math.inf
) -> Steps[str]:
    """Uploads the rest of a file, up to its size by then; returns the digest of all of it.

    Sends at least one part, so that an empty file is registered too.
    """
    while True:
        with file.open("rb") as source:
            source.seek(offset)
            content = source.read(part_bytes)
        try:
            call = calls.put_part(id, file.name, content, offset=offset)
            part = yield from send_steps(replace(call, patience_s=patience_s))
        except ProblemError as error:
            if error.status != CONFLICT or error.field != "offset" or offset == 0:
                raise
            offset = 0  # the server has less than expected: start over, which replaces what it has
            continue
        offset = part.received_bytes
        if offset >= file.stat().st_size:
            break
    digest = hashlib.sha256()  # hashlib.file_digest needs Python 3.11
    with file.open("rb") as source:
        while block := source.read(PART_BYTES):
            digest.update(block)
    return digest.hexdigest()
