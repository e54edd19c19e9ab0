"""The state of a follower of events: what it has seen, whether it is done, when it gives up."""

import httpx

from service.client_calls import PASSING, TRIES, pause_s
from service.client_endpoints import SESSIONS, path
from service.client_errors import ProblemError, UnreachableError
from service.client_models import Event

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
