"""`asap diagnose` as a user calls it."""

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).resolve().parents[2]
BREAKDOWN = {
    "compute_us",
    "communication_us",
    "exposed_communication_us",
    "memory_us",
    "idle_us",
    "total_us",
    "overlap_ratio",
}


def _asap(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "service.cli.main", "diagnose", *words]
    return subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=120, check=False)


def _kernel(name: str, start: float, length: float, stream: int) -> dict[str, Any]:
    args = {"stream": stream}
    return {"ph": "X", "cat": "kernel", "name": name, "tid": stream, "ts": start, "dur": length, "args": args}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two ranks; rank 1 computes longer, so rank 0 waits in every all-reduce."""
    for rank in range(2):
        events, work = [], 40 + 50 * rank
        for step in range(4):
            zero = step * 1000
            mark = {
                "ph": "X",
                "cat": "user_annotation",
                "name": f"ProfilerStep#{step}",
                "ts": zero,
                "dur": 900,
            }
            events += [mark, _kernel("sm90_gemm", zero + 10, work, 7)]
            events.append(_kernel("ncclDevKernel_AllReduce_Sum_f32", zero + 10 + work, 200 - work, 9))
        info = {"rank": rank, "world_size": 2, "backend": "nccl"}
        trace = {"distributedInfo": info, "traceEvents": events}
        (tmp_path / f"rank{rank}.json.gz").write_bytes(gzip.compress(json.dumps(trace).encode()))
    return tmp_path


def test_json_is_one_object_in_the_contracts_shape(folder: Path) -> None:
    result = _asap(str(folder), "--json")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("\n") == 1
    data = json.loads(result.stdout)
    assert {"ranks", "total", "collectives", "stragglers", "unreadable", "diagnosis"} <= data.keys()
    assert data["total"].keys() >= BREAKDOWN
    for number, rank in enumerate(data["ranks"]):
        assert rank["rank"] == number
        assert rank.keys() >= BREAKDOWN | {"file", "steps", "top_ops"}
        assert all(step.keys() >= BREAKDOWN for step in rank["steps"])
    wanted = {"bottleneck", "severity", "confidence", "evidence", "next_to_profile"}
    assert data["diagnosis"].keys() >= wanted


def test_the_late_rank_is_named(folder: Path) -> None:
    data = json.loads(_asap(str(folder), "--json").stdout)
    (straggler,) = data["stragglers"]
    assert (straggler["rank"], straggler["arrives_last_ratio"]) == (1, 1.0)
    assert straggler["cause"] == "compute longer"


def test_an_unreadable_file_does_not_stop_the_others(folder: Path) -> None:
    (folder / "rank2.json").write_text('{"traceEvents": [{"name"')
    result = _asap(str(folder), "--json")
    data = json.loads(result.stdout)
    assert result.returncode == 0
    assert len(data["ranks"]) == 2
    assert data["unreadable"][0]["file"] == "rank2.json"
    assert "truncated" in data["unreadable"][0]["reason"]


def test_the_terminal_shows_a_verdict_and_bars(folder: Path) -> None:
    result = _asap(str(folder))
    assert result.returncode == 0, result.stderr
    assert "of the step" in result.stdout
    assert "▓▓" in result.stdout
    assert max(len(line) for line in result.stdout.splitlines()) <= 80


def test_the_page_needs_nothing_but_itself(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    result = _asap(str(folder), "--html", str(page))
    assert result.returncode == 0, result.stderr
    text = page.read_text()
    assert "Plotly.newPlot" in text
    assert "<script src" not in text
    assert "<link" not in text


def test_names_in_traces_cannot_become_markup(folder: Path, tmp_path: Path) -> None:
    name = "</script><script>alert(1)</script><img src=x>"
    (folder / "rank2.json").write_text(json.dumps({"traceEvents": [_kernel(name, 0, 10_000, 7)]}))
    page = tmp_path / "report.html"
    _asap(str(folder), "--html", str(page))
    assert "<script>alert" not in page.read_text()
    assert "<img" not in page.read_text()


def test_two_folders_are_compared(folder: Path) -> None:
    data = json.loads(_asap(str(folder), "--compare", str(folder), "--json").stdout)
    assert data["change"]["speedup"] == 1.0


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (["absent-folder"], "DIR"),
        (["."], "DIR"),
        ([".", "--device", "abacus"], "--device"),
        ([".", "--communication-pattern", "("], "communication pattern"),
        ([".", "--workers", "0"], "--workers"),
    ],
)
def test_wrong_input_is_one_line_that_names_the_field(words: list[str], field: str, tmp_path: Path) -> None:
    empty = [str(tmp_path) if word == "." else word for word in words]
    result = _asap(*empty)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert field in result.stderr


def test_a_folder_of_only_broken_files_is_wrong_input(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_text("nonsense")
    (tmp_path / "rank1.json").write_text('{"traceEvents": []}')
    result = _asap(str(tmp_path), "--json")
    assert result.returncode == 2
    assert "rank0.json" in result.stderr
