"""What one key or tenant may have, what happens on a full disk, and that refusals are in the audit log."""

import subprocess
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from service.sessions.events import EventStreams
from service.traces.store import set_received, usage_of
from tests.unit.service.served import SCENARIO, Serve, Served

NAME = "rank0.json"


def refusal(served: Served, headers: dict[str, str]) -> tuple[int, str]:
    answer = served.client.post("/v1/sessions", json=SCENARIO, headers=headers)
    return answer.status_code, answer.json()["type"]


def test_a_key_and_a_tenant_queue_so_many_sessions_and_others_go_on(serve: Serve) -> None:
    served = serve(key_queued=2, tenant_queued=3)
    anna, bob = served.key("submit", tenant="a", name="anna"), served.key("submit", tenant="a", name="bob")
    first = served.submit(headers=anna | {"Idempotency-Key": "k"})
    served.submit(headers=anna)
    assert refusal(served, anna) == (429, "urn:asap:problem:quota")
    assert served.submit(headers=anna | {"Idempotency-Key": "k"}) == first
    served.submit(headers=bob)
    assert refusal(served, bob)[0] == 429
    served.submit(headers=served.key("submit", tenant="b"))
    served.end(first, "failed", error={"kind": "failed", "message": "x", "field": None})
    served.submit(headers=bob)


def put(served: Served, headers: dict[str, str], content: bytes | Iterator[bytes]) -> tuple[int, str]:
    made = served.client.post("/v1/traces", json={"name": "x"}, headers=headers)
    if made.status_code != 201:
        return made.status_code, made.json()["type"]
    path = f"/v1/traces/{made.json()['id']}/files/{NAME}"
    answer = served.client.put(path, content=content, headers=headers)
    return answer.status_code, answer.json().get("type", "")


def test_a_tenant_keeps_so_many_uploads_and_bytes(serve: Serve) -> None:
    served = serve(tenant_uploads=5, tenant_trace_bytes=5000)
    headers = served.key("submit", tenant="a")
    assert put(served, headers, bytes(3000))[0] == 200
    assert put(served, headers, bytes(3000))[0] == 413
    assert put(served, headers, bytes(2000))[0] == 200
    assert put(served, headers, bytes(10)) == (429, "urn:asap:problem:quota")
    assert put(served, served.key("submit", tenant="b"), bytes(3000))[0] == 200
    put(served, headers, b"")
    assert put(served, headers, b"") == (429, "urn:asap:problem:quota")


def test_parallel_uploads_do_not_exceed_the_quota_together(serve: Serve) -> None:
    """Each saw the same room, and twelve stored ten times the quota. With and without a stated length."""
    served = serve(tenant_trace_bytes=1_000_000, tenant_uploads=100)
    headers = served.key("submit", "read", tenant="a")

    def pieces() -> Iterator[bytes]:
        for _ in range(30):
            yield bytes(10_000)

    with ThreadPoolExecutor(25) as threads:
        sent = [threads.submit(put, served, headers, bytes(300_000)) for _ in range(25)]
        sent += [threads.submit(put, served, headers, pieces()) for _ in range(25)]
        statuses = Counter(one.result()[0] for one in sent)
    stored = sum(file.stat().st_size for file in (served.app.settings.data_dir / "traces").rglob("*.json"))
    assert stored <= 1_000_000
    assert statuses.keys() <= {200, 413, 429}
    assert 1 <= statuses[200] <= 3
    with served.app.database.read() as conn:
        assert usage_of(conn, "a")[1] == stored, "what was reserved and did not come is given back"


def test_a_server_that_died_amid_an_upload_says_what_arrived(serve: Serve) -> None:
    served = serve()
    headers = served.key("submit", "read", tenant="a")
    id = served.client.post("/v1/traces", json={}, headers=headers).json()["id"]
    served.client.put(f"/v1/traces/{id}/files/{NAME}", content=bytes(3000), headers=headers)
    with served.app.database.begin() as conn:
        set_received(conn, id, NAME, 10**6)  # reserved, and never given back
    (file,) = served.client.get(f"/v1/traces/{id}", headers=headers).json()["files"]
    assert file["received_bytes"] == 3000


def test_sessions_that_wait_for_approval_schedules_and_clusters_count(serve: Serve) -> None:
    served = serve(tenant_queued=1, tenant_schedules=1, tenant_clusters=1)
    headers = served.key("submit", tenant="a")
    id = served.submit(SCENARIO | {"approval": "person"}, headers)
    served.end(id, "waiting_approval", waiting_for={"proposals": []})
    assert refusal(served, headers) == (429, "urn:asap:problem:quota")

    def status(path: str, body: object) -> int:
        return served.client.post(path, json=body, headers=headers).status_code

    def run(cluster: str) -> dict[str, object]:
        named = SCENARIO | {"cluster": SCENARIO["cluster"] | {"name": cluster}}
        return {"scenario": named, "measured": {"step_time_s": 1.0}}

    workload = {"name": "w", "scenario": SCENARIO, "uploads": "w-*"}
    schedule = {"cron": "30 5 * * *", "workloads": [workload]}
    assert [status("/v1/schedules", schedule | {"name": name}) for name in "ab"] == [201, 429]
    assert [status("/v1/measurements", run(name)) for name in ("one", "one", "two")] == [201, 201, 429]


@pytest.mark.parametrize("who", ["key", "tenant"])
def test_a_key_and_a_tenant_follow_so_many_streams(serve: Serve, who: str) -> None:
    served = serve(key_streams=2, tenant_streams=3)
    headers = served.key("submit", "read", tenant="a")
    id = served.submit(headers=headers)
    key = headers["Authorization"].split("_")[1]
    most, name = {"key": (2, f"key:{key}"), "tenant": (3, "a")}[who]
    served.app.get(EventStreams)._open[who, name] = most
    answer = served.client.get(f"/v1/sessions/{id}/events", headers=headers)
    assert (answer.status_code, answer.json()["type"]) == (429, "urn:asap:problem:quota")
    assert f"this {who} follows {most} event streams" in answer.text
    page = served.client.get(f"/v1/sessions/{id}/events", headers=headers | {"Accept": "application/json"})
    assert page.status_code == 200


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of one megabyte."""
    folder = tmp_path / "small"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True
    )
    if made.returncode:
        pytest.skip("needs the right to mount a file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_not_ready_and_an_upload_says_so(serve: Serve, small_disk: Path) -> None:
    served = serve(traces_dir=small_disk)
    ready = served.client.get("/readyz")
    assert (ready.status_code, ready.json()["checks"]["disk"]["ok"]) == (503, False)
    headers = served.key("submit")
    assert put(served, headers, bytes(3 << 20)) == (507, "urn:asap:problem:full")


def test_refused_changes_are_in_the_audit_log_and_reads_are_not(served: Served) -> None:
    admin = served.key("admin", tenant="a", name="root")
    reader = served.key("read", tenant="a", name="eve") | {"X-Request-Id": "r-9"}
    served.client.get("/v1/sessions/none", headers=reader)
    assert served.client.post("/v1/sessions", json=SCENARIO, headers=reader).status_code == 403
    (entry,) = served.client.get("/v1/audit", headers=admin).json()["items"]
    assert (entry["who"], entry["action"], entry["target"]) == ("eve", "request.failed", "POST /v1/sessions")
    assert (entry["request_id"], entry["details"]) == ("r-9", {"status": 403})
