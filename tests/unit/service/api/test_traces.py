"""Uploads: in parts, resumed, checked, bounded, analysed, forgotten in time."""

import errno
import gzip
import hashlib
import json
import time
from pathlib import Path
from typing import Any

import pytest

from service.settings import Settings
from service.traces.uploads import Uploads, check_name
from service.traces.usecases import Traces, sweep
from tests.unit.service.served import SCENARIO, Serve, Served
from tools.errors import InputError

TRACE = gzip.compress(
    json.dumps(
        {
            "schemaVersion": 1,
            "distributedInfo": {"rank": 0, "world_size": 1},
            "traceEvents": [
                {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 10.0 * n, "dur": 5.0}
                for n in range(20)
            ],
        }
    ).encode(),
    mtime=0,
)
NAME = "rank0.json.gz"


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def begin(served: Served) -> str:
    answer = served.client.post("/v1/traces", json={"name": "tuesday"})
    assert answer.status_code == 201, answer.text
    assert answer.headers["Location"] == f"/v1/traces/{answer.json()['id']}"
    return f"/v1/traces/{answer.json()['id']}"


def put(served: Served, path: str, content: bytes, offset: int = 0, name: str = NAME) -> Any:  # noqa: ANN401
    return served.client.put(f"{path}/files/{name}", content=content, params={"offset": offset})


def complete(served: Served, path: str, files: dict[str, str] | None = None) -> Any:  # noqa: ANN401
    return served.client.post(f"{path}/complete", json={"files": files or {NAME: digest(TRACE)}})


def whole(served: Served, content: bytes = TRACE) -> str:
    path = begin(served)
    assert put(served, path, content).status_code == 200
    assert complete(served, path, {NAME: digest(content)}).status_code == 200
    return path


def analysed(served: Served, path: str) -> dict[str, Any]:
    for _ in range(200):
        found: dict[str, Any] = served.client.get(path).json()
        if found["analysis"] or found["error"]:
            return found
        time.sleep(0.05)
    raise AssertionError("no analysis came")


def test_a_part_sent_again_replaces_what_follows_it_and_a_gap_is_refused(served: Served) -> None:
    path = begin(served)
    put(served, path, b"wrong bytes, all of them")
    for _ in range(2):
        assert put(served, path, TRACE[:100], 0).json()["received_bytes"] == 100
    answer = put(served, path, TRACE[150:], 150)
    assert (answer.status_code, answer.json()["field"]) == (409, "offset")
    assert "100 bytes" in answer.json()["detail"]
    put(served, path, TRACE[100:], 100)
    assert complete(served, path).status_code == 200


def test_a_wrong_digest_is_refused_and_the_upload_stays_open(served: Served) -> None:
    path = begin(served)
    put(served, path, TRACE)
    answer = complete(served, path, {NAME: "0" * 64})
    assert (answer.status_code, answer.json()["field"]) == (422, f"files.{NAME}")
    assert digest(TRACE) in answer.json()["detail"]
    assert served.client.get(path).json()["state"] == "open"


@pytest.mark.parametrize(
    "name",
    ["..", ".hidden.json", "a/b.json", "a\\b.json", "-rf.json", "a b.json", "x" * 200 + ".json", "é.json"],
)
def test_a_name_with_a_meaning_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="file name"):
        check_name(name)


@pytest.mark.parametrize("name", ["%2e%2e%2fa.json", "..%2f..%2fa.json", "a%2fb.json"])
def test_a_name_cannot_leave_the_folder(served: Served, name: str, tmp_path: Path) -> None:
    answer = put(served, begin(served), b"x", name=name)
    assert answer.status_code in (404, 405, 422)
    assert not list(tmp_path.rglob("a.json"))


def test_the_files_of_an_upload_together_are_bounded(serve: Serve) -> None:
    served = serve(max_trace_bytes=1500)
    path = begin(served)
    assert put(served, path, b"x" * 1000).status_code == 200
    answer = put(served, path, b"x" * 600, name="rank1.json")
    assert (answer.status_code, answer.json()["type"]) == (413, "urn:asap:problem:too-large")
    assert put(served, path, b"x" * 500, name="rank1.json").status_code == 200


def test_an_upload_is_analysed_in_the_background(served: Served) -> None:
    found = analysed(served, whole(served))
    assert found["error"] is None
    assert found["analysis"]["total"]["compute_us"] == pytest.approx(100)
    assert found["analysis"]["diagnosis"]["bottleneck"]


def test_an_upload_that_is_not_a_trace_says_so_without_our_paths(served: Served, tmp_path: Path) -> None:
    found = analysed(served, whole(served, b"not a trace"))
    assert found["analysis"] is None
    assert found["error"]["unreadable"][0]["file"] == NAME
    assert str(tmp_path) not in json.dumps(found)


def test_an_analysis_that_fails_is_reported_and_not_repeated(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []

    def fail(folder: Path, **_options: object) -> None:
        tries.append(folder)
        raise RuntimeError("a bug, with the server's own secrets")

    monkeypatch.setattr("tools.trace.report.analyse_folder", fail)
    found = analysed(served, whole(served))
    assert (found["analysis"], found["error"]["kind"]) == (None, "unexpected")
    assert "secrets" not in found["error"]["message"]
    assert len(tries) == 1


def test_an_analysis_that_found_no_room_is_made_again(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep, fulls = Uploads.keep_overview, [OSError(errno.ENOSPC, "No space left on device")] * 2

    def keep_with_room(uploads: Uploads, id: str, packed: bytes) -> None:
        if fulls:
            raise fulls.pop()
        keep(uploads, id, packed)

    monkeypatch.setattr(Uploads, "keep_overview", keep_with_room)
    assert analysed(served, whole(served))["analysis"]
    assert not fulls


def test_an_analysis_that_was_lost_is_made_when_asked_for(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = serve()
    monkeypatch.setattr(first.app.get(Traces).analyses, "_analyse", lambda id: None)
    path = whole(first)
    assert analysed(serve(), path)["analysis"]


def test_a_session_may_use_an_upload_that_is_whole(served: Served) -> None:
    path = begin(served)
    reference = served.client.get(path).json()["reference"]
    early = served.client.post("/v1/sessions", json=SCENARIO | {"traces": reference})
    assert (early.status_code, early.json()["field"]) == (409, "traces")
    put(served, path, TRACE)
    complete(served, path)
    id = served.submit(SCENARIO | {"traces": reference}, headers=served.key("submit"))
    detail = served.client.get(f"/v1/sessions/{id}", headers=served.key("read")).json()
    assert detail["request"]["traces"] == reference


def test_a_deleted_upload_is_gone_from_disk(served: Served) -> None:
    path = whole(served)
    folder = served.app.get(Traces).uploads.folder(path.rpartition("/")[2])
    assert folder.is_dir()
    assert served.client.delete(path).status_code == 204
    assert not folder.exists()
    assert served.client.get(path).status_code == 404


def test_the_sweep_deletes_what_is_too_old_and_nothing_else(serve: Serve) -> None:
    served = serve(trace_days=3)
    path = whole(served)
    app, day_s = served.app, 86_400
    assert sweep(app.database, app.get(Traces).uploads, time.time() + 2.9 * day_s) == 0
    assert sweep(app.database, app.get(Traces).uploads, time.time() + 3.1 * day_s) == 1
    assert served.client.get(path).status_code == 404
    assert not app.get(Traces).uploads.folder(path.rpartition("/")[2]).exists()


def test_a_discard_that_a_process_died_over_is_completed_by_the_next(tmp_path: Path) -> None:
    uploads = Uploads(Settings(traces_dir=tmp_path, _env_file=None))
    for half in ("u1", ".u1.deleted"):
        (tmp_path / half).mkdir()
        (tmp_path / half / "rank0.json").write_text("{}")
    uploads.discard("u1")
    assert list(tmp_path.iterdir()) == []
    uploads.discard("u1")
