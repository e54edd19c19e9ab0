"""The client: what it sends again, how long it waits, how it follows events, both ways alike."""

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from asap_client import core
from asap_client.async_client import AsyncClient
from asap_client.client import Client
from asap_client.core import pause_s
from asap_client.errors import InfeasibleError, InputError, ProblemError, UnreachableError
from asap_client.generated.models import SessionWithRequest
from asap_client.operations import is_trace_name
from tests.unit.asap_client.answers import session_json, trace_json
from tests.unit.service.served import SCENARIO
from tools.trace import files as server_files

SERVER = "http://asap.example"
Handler = Callable[[httpx.Request], httpx.Response]


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "FIRST_PAUSE_S", 0.001)


class Script:
    """Answers one after another; an exception in it is raised. Keeps the requests."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.answers, self.requests = list(answers), list[httpx.Request]()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def plain(handler: Handler) -> Client:
    return Client(SERVER, "asap_key", httpx.MockTransport(handler))


def ok(body: object = None, status: int = 200) -> httpx.Response:
    return httpx.Response(status, json=session_json() if body is None else body)


def refused(status: int, **problem: object) -> httpx.Response:
    return httpx.Response(status, json={"type": "urn:asap:problem:x", "detail": "no", **problem})


LOST = httpx.ReadError("gone")
UNSENT = httpx.ConnectError("refused")


@pytest.mark.parametrize(
    ("call", "passing", "attempts"),
    [
        *(("session", passing, 3) for passing in (LOST, UNSENT, httpx.ReadTimeout("slow"))),
        *(("session", refused(status), 3) for status in (429, 502, 503)),
        *(("retry", passing, 3) for passing in (UNSENT, refused(429), refused(503))),
        ("retry", LOST, 1),
    ],
)
def test_what_passes_is_sent_again_unless_it_might_happen_twice(
    call: str, passing: httpx.Response | Exception, attempts: int
) -> None:
    script = Script(passing, passing, ok())
    with pytest.raises(UnreachableError) if attempts == 1 else nullcontext():
        assert getattr(plain(script), call)("s1").id == "s1"
    assert len(script.requests) == attempts


def test_a_submission_is_sent_again_under_its_own_key() -> None:
    script = Script(LOST, ok(status=202))
    client = plain(script)
    client.submit(SCENARIO)
    client.submit(SCENARIO)
    first, again, second = (request.headers["Idempotency-Key"] for request in script.requests)
    assert first == again != second


def test_a_refusal_is_final_tells_all_and_is_caught_as_if_it_had_been_found_here() -> None:
    problem = {"field": "plan.tp", "given": "3", "allowed": "1 to 2", "request_id": "r1"}
    script = Script(refused(422, type="urn:asap:problem:wrong-input", **problem))
    with pytest.raises(InputError, match="no") as caught:
        plain(script).predict(SCENARIO)
    assert (caught.value.field, caught.value.given, caught.value.allowed) == ("plan.tp", "3", "1 to 2")
    assert isinstance(caught.value, ProblemError)
    assert (caught.value.status, caught.value.kind, caught.value.request_id) == (422, "wrong-input", "r1")
    assert len(script.requests) == 1
    with pytest.raises(InfeasibleError, match="no"):
        plain(Script(refused(422, type="urn:asap:problem:nothing-feasible"))).search_plans(SCENARIO)


def test_a_server_that_nobody_started_is_named_with_the_next_step() -> None:
    with pytest.raises(UnreachableError, match=r"GET http://.*/s1: .*is 'asap serve' running there"):
        plain(Script(UNSENT)).session("s1")


@pytest.mark.parametrize("page", [httpx.Response(302, headers={"Location": "/login"}), ok("log in"), ok({})])
def test_a_login_page_in_front_of_the_server_is_an_error_in_one_line(page: httpx.Response) -> None:
    with pytest.raises(ProblemError, match=r"^[^\n]*is 'asap serve' running there\?$"):
        plain(lambda _: page).session("s1")


def test_the_pause_grows_and_heeds_the_server() -> None:
    assert pause_s(1) < pause_s(4) <= core.MAX_PAUSE_S
    assert pause_s(1, httpx.Response(429, headers={"Retry-After": "7"})) == 7
    assert pause_s(1, httpx.Response(429, headers={"Retry-After": "99999"})) == 60
    assert pause_s(1, httpx.Response(429, headers={"Retry-After": "Wed, 21 Oct"})) < 1


def test_an_id_cannot_become_another_address() -> None:
    script = Script(ok())
    plain(script).session("../../v1/traces?x=1")
    assert script.requests[0].url.raw_path == b"/v1/sessions/..%2F..%2Fv1%2Ftraces%3Fx%3D1"


@pytest.mark.parametrize("server", ["asap.example", "ftp://x", "http://", ""])
def test_a_wrong_server_is_named(server: str) -> None:
    with pytest.raises(InputError, match="server"):
        Client(server)


@pytest.mark.parametrize("end", ["completed", "failed", "cancelled", "waiting_approval"])
def test_waiting_ends_with_the_session_or_at_a_person(end: str) -> None:
    script = Script(
        ok(session_json(state="queued")), ok(session_json(state="running")), ok(session_json(state=end))
    )
    assert plain(script).wait("s1").state == end


def stream(*numbers: int) -> bytes:
    """The server-sent events with these numbers."""
    common = {
        "at": "2026-11-16T00:00:00Z",
        "node": "n",
        "kind": "k",
        "summary": "s",
        "content": {"text": "a\nb"},
    }
    events = [f"id: {seq}\ndata: {json.dumps({'seq': seq} | common)}\n\n" for seq in numbers]
    return ("retry: 300\n\n: heartbeat\n\n" + "".join(events)).encode()


class Broken(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A stream that is cut in the middle."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def __iter__(self) -> Iterator[bytes]:
        yield self.content
        raise LOST

    async def __aiter__(self) -> Any:  # noqa: ANN401 - an asynchronous iterator
        yield self.content
        raise LOST


def streams() -> Script:
    """Cut in the middle of the third event, repeats one, is away for a moment, ends."""
    return Script(
        httpx.Response(200, stream=Broken(stream(1, 2) + stream(3)[:-20])),
        httpx.Response(200, content=stream(2, 3)),
        UNSENT,
        refused(503),
        httpx.Response(200, content=stream(4)),
        httpx.Response(204),
    )


def test_events_come_once_and_in_order_over_broken_connections() -> None:
    script = streams()
    assert [event.seq for event in plain(script).events("s1")] == [1, 2, 3, 4]
    sent = [request.headers["Last-Event-ID"] for request in script.requests]
    assert sent == ["0", "2", "3", "3", "3", "4"]


class Store:
    """Takes uploads as the server does, and loses some answers."""

    def __init__(self, loses: int = 0) -> None:
        self.files: dict[str, bytes] = {}
        self.loses = loses

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method == "PUT":
            return self._put(request)
        files = [{"name": name, "received_bytes": len(held)} for name, held in self.files.items()]
        return httpx.Response(200, json=trace_json(files=files))

    def _put(self, request: httpx.Request) -> httpx.Response:
        name, offset = request.url.path.rpartition("/")[2], int(request.url.params["offset"])
        held = self.files.get(name, b"")
        if offset > len(held):
            return refused(409, field="offset")
        self.files[name] = held[:offset] + request.content
        self.loses -= 1
        if self.loses >= 0:
            raise LOST
        return httpx.Response(200, json={"name": name, "received_bytes": len(self.files[name])})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rank0.json").write_bytes(bytes(range(256)) * 10)
    (tmp_path / "rank1.json").write_bytes(b"")
    for other in (".hidden", "README.md", "rank0.overhead.json"):
        (tmp_path / other).write_bytes(b"no trace")
    return tmp_path


def test_a_folder_is_uploaded_in_parts_though_answers_are_lost(folder: Path) -> None:
    store = Store(loses=3)
    plain(store).upload(folder, part_bytes=1000)
    assert store.files == {name: (folder / name).read_bytes() for name in ("rank0.json", "rank1.json")}


def test_an_upload_that_was_broken_off_goes_on(folder: Path) -> None:
    store, script = Store(), list[httpx.Request]()
    store.files["rank0.json"] = (folder / "rank0.json").read_bytes()[:2000]

    def handler(request: httpx.Request) -> httpx.Response:
        script.append(request)
        return store(request)

    plain(handler).upload(folder, into="t1", part_bytes=1000)
    offsets = [request.url.params["offset"] for request in script if request.method == "PUT"]
    assert offsets == ["2000", "0"]


def test_a_file_that_shrinks_while_it_is_uploaded_does_not_hold_the_upload_for_ever(folder: Path) -> None:
    store, parts = Store(), list[int]()

    def handler(request: httpx.Request) -> httpx.Response:
        if request.method == "PUT":
            (folder / "rank0.json").write_bytes(b"shorter")
            parts.append(len(request.content))
        assert len(parts) < 10
        return store(request)

    plain(handler).upload(folder, part_bytes=1000)
    assert parts == [1000, 0]


def test_the_asynchronous_client_does_the_same(folder: Path) -> None:
    def client(handler: Handler) -> AsyncClient:
        return AsyncClient(SERVER, transport=httpx.MockTransport(handler))

    async def use() -> None:
        async with client(streams()) as events:
            assert [event.seq async for event in events.events("s1")] == [1, 2, 3, 4]
        store = Store(loses=2)
        async with client(store) as uploads:
            await uploads.upload(folder, part_bytes=1000)
        assert store.files["rank0.json"] == (folder / "rank0.json").read_bytes()
        ending = Script(ok(session_json(state="queued")), LOST, ok(session_json(state="completed")))
        async with client(ending) as waits:
            assert (await waits.wait("s1")).state == "completed"
        more = ok({"items": [session_json()], "next_cursor": "c"})
        async with client(Script(more, ok({"items": [], "next_cursor": None}))) as pages:
            assert len([session async for session in pages.all_sessions()]) == 1

    anyio.run(use)


def test_client_and_server_agree_on_what_is_a_trace() -> None:
    traces = {"rank0.json", "rank0.json.gz", "r.sqlite", "r.sqlite3", "r.xplane.pb"}
    for name in traces | {".r.json", "r.overhead.json", "r.txt"}:
        assert is_trace_name(name) == server_files.is_trace_name(name) == (name in traces), name


@pytest.mark.parametrize(
    "change",
    [
        {"id": 7},
        {"priority": True},
        {"state": "lost"},
        {"created_at": 1.5},
        {"labels": []},
        {"speedup": "2x"},
    ],
)
def test_a_session_with_a_field_of_another_type_is_refused(change: dict[str, Any]) -> None:
    (name,) = change
    with pytest.raises(ValueError, match=f"SessionWithRequest.{name}"):
        SessionWithRequest.from_json(session_json() | change)
