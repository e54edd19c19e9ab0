"""The server as users have it: a process of its own, replicas beside it, killed and started again."""

import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from asap_client.client import Client
from asap_client.generated.models import Event
from service.db.engine import open_database
from service.jobs.model import BUSY
from service.sessions.lifecycle import set_state
from service.sessions.store import get_session
from service.settings import Settings
from tests.integration.service.api_process import ApiProcess, api_process, asap
from tests.servers import free_port
from tests.unit.service.db.making import append_event
from tests.unit.service.served import SCENARIO

WAIT_S = 120.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("service")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ApiProcess]:
    """Everything in one process."""
    with api_process(folder) as process:
        yield process


@pytest.fixture(scope="module")
def replica(server: ApiProcess, folder: Path) -> Iterator[ApiProcess]:
    """Another process over the same data, which only answers."""
    with api_process(folder, "--role", "api") as process:
        yield process


@pytest.fixture
def client(server: ApiProcess) -> Iterator[Client]:
    with Client(server.address) as made:
        yield made


def test_a_stream_cut_again_and_again_has_every_event_once(server: ApiProcess, replica: ApiProcess) -> None:
    """By hand: each connection is left after a few events, and the next goes to the other replica."""
    with Client(server.address) as client:
        id = client.submit(SCENARIO).id
    seen: list[str] = []
    addresses = [server.address, replica.address] * 200
    for address in addresses:
        headers = {"Last-Event-ID": seen[-1]} if seen else {}
        with httpx.stream("GET", f"{address}/v1/sessions/{id}/events", headers=headers, timeout=60) as answer:
            if answer.status_code == 204:
                break
            fresh = (line.removeprefix("id: ") for line in answer.iter_lines() if line.startswith("id: "))
            seen += [number for number, _ in zip(fresh, range(3), strict=False)]
    assert seen == [str(number) for number in range(1, len(seen) + 1)]
    assert len(seen) > 10


def test_the_client_follows_events_while_the_server_is_killed_and_restarted(tmp_path: Path) -> None:
    port, seen = free_port(), list[Event]()
    with api_process(tmp_path, "--role", "api", port=port) as first:
        with Client(first.address) as client:
            id = client.submit(SCENARIO).id
        follower = threading.Thread(target=_follow, args=(first.address, id, seen))
        follower.start()
        database = open_database(Settings(data_dir=tmp_path / "data").database)
        for number in range(20):
            with database.begin() as conn:
                append_event(conn, id, {"key": str(number), "node": "test", "kind": "tool"})
            if number == 10:
                _wait_for(lambda: len(seen) >= 5)
                assert first.kill() == -signal.SIGKILL
    with api_process(tmp_path, "--role", "api", port=port):
        with database.begin() as conn:
            set_state(conn, id, "failed")
        follower.join(WAIT_S)
    database.close()
    assert [event.seq for event in seen] == list(range(1, 23))


def _follow(address: str, id: str, seen: list[Event]) -> None:
    """Connections are refused for as long as a start takes: more tries than one call makes."""
    with Client(address) as client:
        while not seen or seen[-1].kind != "state" or seen[-1].content["state"] != "failed":
            try:
                seen.extend(client.events(id, seen[-1].seq if seen else 0))
            except Exception:  # noqa: BLE001 - whatever a dying server causes
                time.sleep(0.2)


def _wait_for(condition: Any) -> None:  # noqa: ANN401 - a function
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_an_upload_that_was_cut_goes_on_at_another_replica(
    server: ApiProcess, replica: ApiProcess, tmp_path: Path
) -> None:
    content = b'{"traceEvents": [' + b" " * 3_000_000 + b"]}"
    (tmp_path / "rank0.json").write_bytes(content)
    with Client(server.address) as client, Client(replica.address) as other:
        trace = httpx.post(f"{server.address}/v1/traces", json={"name": "cut"}).json()["id"]
        _send_and_leave(server.address, f"/v1/traces/{trace}/files/rank0.json", content, 1_000_000)
        _wait_for(lambda: client.trace(trace).files and client.trace(trace).files[0].received_bytes > 0)
        arrived = client.trace(trace).files[0].received_bytes
        assert 0 < arrived <= 1_000_000
        whole = other.upload(tmp_path, into=trace)
        assert whole.state == "complete"
        assert whole.files[0].received_bytes == len(content)


def _send_and_leave(address: str, path: str, content: bytes, part: int) -> None:
    """Promises the whole body, sends a part of it and hangs up."""
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        head = f"PUT {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: {len(content)}\r\n\r\n"
        connection.sendall(head.encode() + content[:part])
        time.sleep(0.5)


def test_a_slow_body_is_given_up_and_a_server_that_is_told_to_stop_ends_its_streams(tmp_path: Path) -> None:
    """It would wait an hour for them."""
    with api_process(tmp_path, "--role", "api", request_s=0.5, shutdown_s=3600) as server:
        host, port = server.address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as connection:
            head = f"POST /v1/predict HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            connection.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
            connection.settimeout(30)
            assert b" 408 " in connection.recv(4096).split(b"\r\n")[0]
        with Client(server.address) as client:
            id = client.submit(SCENARIO).id
        with httpx.stream("GET", f"{server.address}/v1/sessions/{id}/events", timeout=60) as answer:
            lines = answer.iter_lines()
            assert next(line for line in lines if line.startswith("id:")) == "id: 1"
            assert server.stop() == 0
        assert any(line["message"] == "listening" for line in server.log_lines())


def test_signals_in_quick_succession_end_a_server_too(tmp_path: Path) -> None:
    with api_process(tmp_path) as process:
        process.signal(signal.SIGINT)
        assert process.process
        assert process.process.poll() is None, "the second signal would reach nobody"
        assert process.stop() == 0


def test_a_restart_loses_nothing(tmp_path: Path) -> None:
    with api_process(tmp_path) as first, Client(first.address) as client:
        ids = [client.submit(SCENARIO).id for _ in range(3)]
        assert first.kill() == -signal.SIGKILL
    settings = Settings(data_dir=tmp_path / "data")
    with closing(open_database(settings.database)) as database, database.read() as conn:
        states = [get_session(conn, "", id).state for id in ids]
    assert set(states) & set(BUSY), "all of it was done before the kill"
    with api_process(tmp_path) as second, Client(second.address) as client:
        assert {client.wait(id, WAIT_S).state for id in ids} == {"completed"}
        for id in ids:
            numbers = [event.seq for event in client.events(id)]
            assert numbers == list(range(1, len(numbers) + 1))
            assert len(numbers) > 3
        assert second.stop() == 0


def test_without_a_key_only_loopback_is_listened_on_and_the_server_says_so(
    server: ApiProcess, tmp_path: Path
) -> None:
    assert any("only this machine" in str(line["message"]) for line in server.log_lines())
    refused = asap(tmp_path, "serve", "--host", "0.0.0.0", "--port", "0")
    assert refused.returncode == 2
    assert "--host" in refused.stderr
    assert "asap keys" in refused.stderr


def test_a_port_that_is_taken_is_reported_in_one_line(server: ApiProcess, folder: Path) -> None:
    port = server.address.rpartition(":")[2]
    taken = asap(folder, "serve", "--role", "api", "--port", port)
    assert (taken.returncode, taken.stdout) == (1, "")
    assert f"cannot listen on 127.0.0.1:{port}" in taken.stderr.splitlines()[-1]


def test_a_second_worker_on_one_folder_is_refused_and_ends(server: ApiProcess, folder: Path) -> None:
    second = asap(folder, "serve", "--port", "0")
    assert second.returncode == 1
    assert "another process runs the sessions" in second.stderr


def test_the_command_line_submits_waits_and_decides(server: ApiProcess, folder: Path) -> None:
    def run(*words: str) -> str:
        done = asap(folder, "sessions", *words, "--server", server.address)
        assert done.returncode == 0, done.stderr
        return done.stdout

    scenario = folder / "scenario.json"
    scenario.write_text(httpx.Response(200, json=SCENARIO | {"approval": "person"}).text)
    id = run("submit", str(scenario), "--label", "by=hand").strip()
    assert f'"{id}"' in run("list", "--label", "by=hand", "--json")
    with Client(server.address) as client:
        assert client.wait(id, WAIT_S).state == "waiting_approval"
        assert client.proposals(id)[0]["prediction"]["step_time_s"] > 0
    run("decide", id, "approve", "--proposal", "1", "--comment", "go")
    with Client(server.address) as client:
        assert client.wait(id, WAIT_S).state == "completed"
        assert client.report(id)["decisions"][0]["action"] == "approve"
    assert "completed" in run("events", id).splitlines()[-1]
    assert run("report", id).startswith("# ")
    assert run("report", id, "--format", "html").startswith("<!doctype html>")
    assert "completed" in run("show", id)
    assert run("export", id, "--format", "megatron")
    run("delete", id)
    missing = asap(folder, "sessions", "show", id, "--server", server.address)
    assert (missing.returncode, "there is no session" in missing.stderr) == (1, True)


def test_optimize_at_a_server_prints_what_it_would_print_here(server: ApiProcess, folder: Path) -> None:
    scenario = folder / "asked.json"
    scenario.write_text(httpx.Response(200, json=SCENARIO).text)
    there = asap(folder, "--server", server.address, "optimize", str(scenario), "--json")
    here = asap(folder, "optimize", str(scenario), "--json")
    assert (there.returncode, here.returncode) == (0, 0), there.stderr
    proposals = [json.loads(run.stdout)["proposals"] for run in (there, here)]
    assert [p["plan"] for p in proposals[0]] == [p["plan"] for p in proposals[1]]
    lost = asap(folder, "--server", "http://127.0.0.1:1", "optimize", str(scenario))
    assert (lost.returncode, "cannot be reached" in lost.stderr) == (1, True)
