"""A real server hands what computes to its processes: same answers, a budget, and reads that do not wait."""

import json
import os
import signal
import socket
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest
from fastapi.routing import iter_route_contexts

from service.app import API_ROUTERS, PAGE_ROUTERS
from service.db.engine import open_database
from service.http.computing import CHANGING, COMPUTING, KEPT_AS_JSON, WAITING
from service.http.limits import TENANT_QUESTIONS
from service.jobs.model import COMPLETED
from service.sessions.dispatch import SESSIONS
from service.sessions.lifecycle import set_state
from tests.integration.service.api_process import ApiProcess, api_process, asap
from tests.integration.service.at_work import wait_for
from tests.unit.graph.cases import report_of
from tests.unit.service.served import SCENARIO


def new_tenant(api: ApiProcess) -> str:
    """The key of a tenant that has spent nothing yet."""
    tenant = f"t{uuid.uuid4().hex[:12]}"
    words = ("keys", "add", tenant, "--tenant", tenant, "--scope", "submit", "--scope", "read", "--json")
    return str(json.loads(asap(api.folder, *words).stdout)["key"])


def client(api: ApiProcess, key: str) -> httpx.Client:
    return httpx.Client(base_url=api.address, headers={"Authorization": f"Bearer {key}"}, timeout=300)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiProcess]:
    folder = tmp_path_factory.mktemp("api")
    with api_process(folder, "--role", "api", compute_processes=2, tenant_cpu_s=0.5, request_s=300) as server:
        yield server


@pytest.fixture
def api(server: ApiProcess) -> Iterator[ApiProcess]:
    """Each test is another tenant, since their time is counted; processes that it stopped go on after it."""
    yield server
    for id in computers(server):
        os.kill(id, signal.SIGCONT)


def completed(api: ApiProcess, caller: httpx.Client) -> str:
    """A session that is done, without a worker."""
    id = str(caller.post("/v1/sessions", json=SCENARIO).json()["id"])
    with (
        closing(open_database(f"sqlite:///{api.folder / 'data/asap.db'}")) as database,
        database.begin() as conn,
    ):
        held = SESSIONS.claim(conn, id, "test", 1)
        assert held
        set_state(conn, id, COMPLETED, held.fence, report=report_of(SCENARIO))
    return id


@contextmanager
def hanging() -> Iterator[tuple[str, list[socket.socket]]]:
    """A model's endpoint that takes every question and answers none; who asks it."""
    asked: list[socket.socket] = []

    def accept(server: socket.socket) -> None:
        while True:
            try:
                asked.append(server.accept()[0])
            except OSError:  # closed
                return

    with socket.create_server(("127.0.0.1", 0), backlog=256) as server:
        threading.Thread(target=accept, args=(server,), daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/v1", asked
        server.shutdown(socket.SHUT_RDWR)
    for connection in asked:
        connection.close()


def computers(api: ApiProcess) -> list[int]:
    """The server's processes that compute, by their command."""
    assert api.process
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            command = (folder / "cmdline").read_bytes()
        except OSError:  # it has ended
            continue
        if parent == api.process.pid and b"service.computer" in command:
            found.append(int(folder.name))
    return found


def test_a_process_of_low_priority_answers_as_the_server_would(api: ApiProcess) -> None:
    with client(api, new_tenant(api)) as caller:
        wait_for(lambda: bool(computers(api)), 30)
        assert os.getpriority(os.PRIO_PROCESS, computers(api)[0]) > os.getpriority(os.PRIO_PROCESS, 0)
        answer = caller.post("/v1/predict", json=SCENARIO, headers={"X-Request-Id": "mine"})
        assert answer.status_code == 200, answer.text
        assert answer.json()["step_time_s"] > 0
        assert answer.headers.get_list("X-Request-Id") == ["mine"]
        assert len(answer.headers.get_list("Content-Security-Policy")) == 1
        wrong = caller.post(
            "/v1/predict", json=SCENARIO | {"plan": {"tp": 3}}, headers={"X-Request-Id": "mine"}
        )
        assert wrong.status_code == 422
        assert wrong.json()["request_id"] == "mine"
        page = caller.get("/what-if")
        assert "<html" in page.text


def test_a_tenant_over_its_budget_is_told_when_to_come_back_and_others_are_not(
    api: ApiProcess,
) -> None:
    batch, key = [SCENARIO] * 400, new_tenant(api)
    with client(api, key) as busy, client(api, new_tenant(api)) as other:

        def is_over() -> bool:
            answer = busy.post("/v1/predict/batch", json=batch)
            assert answer.status_code in (200, 429)
            return answer.status_code == 429 and int(answer.headers["Retry-After"]) > 0

        wait_for(is_over, 300)  # on a busy machine one request may take a minute
        with socket.create_connection(("127.0.0.1", api.port), timeout=20) as connection:
            head = f"POST /v1/predict/batch HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
            connection.sendall(f"{head}Content-Length: 1000000\r\n\r\n".encode())
            assert b" 429 " in connection.recv(1000), "before it has sent a body"
        assert busy.get("/v1/sessions").status_code == 200, "it may read"
        assert other.post("/v1/predict", json=SCENARIO).status_code == 200


def test_reads_are_answered_while_every_process_is_stopped(api: ApiProcess) -> None:
    with client(api, new_tenant(api)) as caller, ThreadPoolExecutor(60) as threads:
        assert caller.post("/v1/predict", json=SCENARIO).status_code == 200
        for id in computers(api):
            os.kill(id, signal.SIGSTOP)
        asked = [threads.submit(caller.post, "/v1/predict", json=SCENARIO) for _ in range(60)]
        wait_for(lambda: sum(one.done() for one in asked) >= 40, 60)  # the others wait for the process
        assert all(caller.get("/v1/sessions").status_code == 200 for _ in range(50))
        for id in computers(api):
            os.kill(id, signal.SIGCONT)
        assert {one.result().status_code for one in asked} == {200, 429}


def test_a_long_body_is_parsed_elsewhere(api: ApiProcess) -> None:
    with client(api, new_tenant(api)) as caller, ThreadPoolExecutor(1) as threads:
        assert caller.post("/v1/predict", json=SCENARIO).status_code == 200
        for id in computers(api):
            os.kill(id, signal.SIGSTOP)
        long = SCENARIO | {"notes": "x" * 100_000}
        asked = threads.submit(caller.post, "/v1/sessions", json=long)
        assert caller.post("/v1/sessions", json=SCENARIO).status_code == 202
        assert not asked.done()
        for id in computers(api):
            os.kill(id, signal.SIGCONT)
        assert asked.result().status_code == 202
        kept = caller.post("/v1/knowledge", json={"id": "x", "story": "x" * 100_000})
        assert kept.status_code == 413


def test_questions_to_a_model_that_hangs_keep_nobody_from_reading(tmp_path: Path) -> None:
    with (
        hanging() as (url, asked),
        api_process(
            tmp_path,
            "--role",
            "api",
            compute_processes=2,
            llm_base_url=url,
            llm_model="m",
            llm_deadline_s=600,
        ) as api,
        client(api, new_tenant(api)) as busy,
        client(api, new_tenant(api)) as other,
        ThreadPoolExecutor(60) as threads,
    ):
        id = completed(api, busy)
        question = {"question": "why?"}
        answers = [threads.submit(busy.post, f"/v1/sessions/{id}/ask", json=question) for _ in range(60)]
        try:
            wait_for(lambda: len(asked) >= TENANT_QUESTIONS, 60)
            wait_for(lambda: sum(one.done() for one in answers) >= 60 - TENANT_QUESTIONS, 60)
            refused = [one.result() for one in answers if one.done()]
            assert Counter(answer.status_code for answer in refused) == {429: 60 - TENANT_QUESTIONS}
            assert all(int(answer.headers["Retry-After"]) > 0 for answer in refused)
            for reader in (busy, other) * 30:
                assert reader.get("/v1/sessions").status_code == 200
            assert sum(not one.done() for one in answers) == TENANT_QUESTIONS, "they wait meanwhile"
        finally:
            api.kill()


def test_questions_to_the_rules_and_reports_as_pages_compute_elsewhere_and_stored_reports_do_not(
    api: ApiProcess,
) -> None:
    with client(api, new_tenant(api)) as caller, ThreadPoolExecutor(8) as threads:
        id = completed(api, caller)
        assert caller.post("/v1/predict", json=SCENARIO).status_code == 200
        for pid in computers(api):
            os.kill(pid, signal.SIGSTOP)
        paths = [f"/sessions/{id}/workbench?tp=2", f"/sessions/{id}/schedule", f"/v1/sessions/{id}/report"]
        asked = [threads.submit(caller.get, path, headers={"Accept": "text/html"}) for path in paths]
        asked.append(threads.submit(caller.get, "/v1/knowledge/search?q=tensor"))
        asked.append(
            threads.submit(caller.post, f"/v1/sessions/{id}/ask", json={"question": "what limits it?"})
        )
        for path in ("", "/report", "/proposals"):
            assert caller.get(f"/v1/sessions/{id}{path}").status_code == 200, path
        assert not any(one.done() for one in asked)
        for pid in computers(api):
            os.kill(pid, signal.SIGCONT)
        assert [one.result().status_code for one in asked] == [200] * 5
        assert asked[-1].result().json()["by"] == "expert-rules"


def test_what_the_server_learns_its_processes_find(api: ApiProcess) -> None:
    with client(api, new_tenant(api)) as caller:
        for number in range(2):  # the second, once the process has read the first
            case = {
                "id": f"racks-{number}",
                "title": "Odd racks",
                "story": f"quokka{number} slowed the links",
            }
            assert caller.post("/v1/knowledge", json=case).status_code == 201
            found = caller.get("/v1/knowledge/search", params={"q": f"quokka{number}"}).json()["items"]
            assert found[0]["entry"]["id"] == case["id"]


def test_a_process_that_ends_amid_a_request_is_replaced(api: ApiProcess) -> None:
    with client(api, new_tenant(api)) as caller, ThreadPoolExecutor(1) as threads:
        assert caller.post("/v1/predict", json=SCENARIO).status_code == 200
        before = computers(api)
        for id in before:
            os.kill(id, signal.SIGSTOP)  # so that the request is under way when it ends
        asked = threads.submit(caller.post, "/v1/predict", json=SCENARIO)
        for id in before:
            os.kill(id, signal.SIGKILL)
        assert asked.result().status_code in (200, 500)
        assert caller.post("/v1/predict", json=SCENARIO).status_code == 200
        assert not set(before) & set(computers(api))


def test_every_endpoint_that_is_named_is_there() -> None:
    routers = (*API_ROUTERS, *PAGE_ROUTERS)
    known = {
        f"{method} {route.path}"
        for router in routers
        for route in iter_route_contexts(router.routes)
        for method in route.methods or ()
    }
    assert known >= COMPUTING | WAITING | CHANGING
    assert COMPUTING >= KEPT_AS_JSON
