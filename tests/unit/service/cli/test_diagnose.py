"""`asap diagnose` as a user calls it."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.service.cli.commands import Asap

REPO = Path(__file__).parents[4]
BREAKDOWN = {
    "compute_us", "communication_us", "exposed_communication_us", "memory_us", "idle_us", "total_us",
    "overlap_ratio",
}  # fmt: skip


def kernel(name: str, start: float, length: float, stream: int) -> dict[str, Any]:
    args = {"stream": stream}
    return {"ph": "X", "cat": "kernel", "name": name, "tid": stream, "ts": start, "dur": length, "args": args}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two ranks; rank 1 computes longer, so rank 0 waits in every all-reduce."""
    folder = tmp_path / "traces"
    folder.mkdir()
    for rank in range(2):
        events, work = [], 40 + 50 * rank
        for step in range(4):
            zero, mark = step * 1000, {"ph": "X", "cat": "user_annotation", "dur": 900}
            events += [
                mark | {"name": f"ProfilerStep#{step}", "ts": zero},
                kernel("sm90_gemm", zero + 10, work, 7),
                kernel("ncclDevKernel_AllReduce_Sum_f32", zero + 10 + work, 200 - work, 9),
            ]
        info = {"rank": rank, "world_size": 2, "backend": "nccl"}
        trace = {"distributedInfo": info, "traceEvents": events}
        (folder / f"rank{rank}.json.gz").write_bytes(gzip.compress(json.dumps(trace).encode()))
    return folder


def test_json_is_one_object_in_the_contracts_shape_and_names_the_late_rank(asap: Asap, folder: Path) -> None:
    result = asap("diagnose", folder, "--json")
    assert (result.status, result.err) == (0, "")
    data = result.answer
    assert {"ranks", "total", "collectives", "stragglers", "unreadable", "diagnosis"} <= data.keys()
    assert data["total"].keys() >= BREAKDOWN
    assert [rank["rank"] for rank in data["ranks"]] == [0, 1]
    for rank in data["ranks"]:
        assert rank.keys() >= BREAKDOWN | {"file", "steps", "top_ops"}
        assert all(step.keys() >= BREAKDOWN for step in rank["steps"])
    wanted = {"bottleneck", "severity", "confidence", "evidence", "next_to_profile"}
    assert data["diagnosis"].keys() >= wanted
    (straggler,) = data["stragglers"]
    assert (straggler["rank"], straggler["arrives_last_ratio"]) == (1, 1.0)
    assert straggler["cause"] == "compute longer"


def test_the_terminal_shows_a_verdict_and_bars(
    asap: Asap, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = asap("diagnose", folder)
    assert result.status == 0, result.err
    assert "of the step" in result.out
    assert "▓▓" in result.out
    assert max(len(line) for line in result.out.splitlines()) <= 80


def test_the_page_needs_nothing_but_itself_and_no_name_in_a_trace_becomes_markup(
    asap: Asap, folder: Path, tmp_path: Path
) -> None:
    name = "</script><script>alert(1)</script><img src=x>"
    (folder / "rank2.json").write_text(json.dumps({"traceEvents": [kernel(name, 0, 10_000, 7)]}))
    page = tmp_path / "report.html"
    result = asap("diagnose", folder, "--html", page)
    assert result.status == 0, result.err
    text = page.read_text()
    assert "drawChart(place" in text
    assert "alert(1)" in text  # the name is shown
    for markup in ("<script src", "<link", "<script>alert", "<img"):
        assert markup not in text


def test_what_changed_since_earlier_traces_is_named_and_adds_up(
    asap: Asap, folder: Path, tmp_path: Path
) -> None:
    earlier, page = tmp_path / "earlier", tmp_path / "page.html"
    earlier.mkdir()
    for file in folder.iterdir():
        trace = json.loads(gzip.decompress(file.read_bytes()))
        for event in trace["traceEvents"]:
            if event.get("cat") == "kernel":
                event["dur"] /= 2
        (earlier / file.name).write_bytes(gzip.compress(json.dumps(trace).encode()))
    found = asap("diagnose", folder, "--against", earlier, "--json", "--html", page).answer
    change = found["change"]
    total = next(term for term in change["terms"] if term["term"] == "total")
    assert change["change_us"] == pytest.approx(total["change_us"]) != 0
    assert sum(part["change_us"] for part in change["parts"]) == pytest.approx(total["change_us"], rel=0.02)
    assert found["before"]["ranks"]
    assert "What changed, adding up" in page.read_text()
    shown = asap("diagnose", folder, "--against", earlier).out
    assert change["causes"][0]["summary"][:40] in shown


def test_traces_of_another_job_are_the_first_finding_and_compared_with_nothing(
    asap: Asap, folder: Path
) -> None:
    example = REPO / "examples" / "llama-3.1-70b-64xh100.json"
    answer = asap("diagnose", str(folder), "--scenario", str(example), "--json").answer
    assert answer["diagnosis"]["cause"] == "trace_mismatch"
    assert answer["diagnosis"]["causes"][0]["evidence"]
    assert {"ranks"} <= {found["about"] for found in answer["match"]["contradictions"]}
    assert "comparison" not in answer
    refused = asap(
        "diagnose", str(folder), "--scenario", str(example), "--calibration-out", str(folder / "c.json")
    )
    assert refused.status == 2
    assert "is not of the traced job" in refused.err
    assert not (folder / "c.json").exists()


def test_an_unreadable_file_does_not_stop_the_others(asap: Asap, folder: Path) -> None:
    (folder / "rank2.json").write_text('{"traceEvents": [{"name"')
    result = asap("diagnose", folder, "--json")
    assert (result.status, len(result.answer["ranks"])) == (0, 2)
    (unreadable,) = result.answer["unreadable"]
    assert unreadable["file"] == "rank2.json"
    assert "truncated" in unreadable["reason"]
