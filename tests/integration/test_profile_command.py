"""`asap profile` around a real torchrun of two gloo ranks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
SCRIPT = REPO / "examples" / "traces" / "ddp-gloo-straggler" / "train.py"

pytestmark = pytest.mark.real


def _profile(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    asap = [sys.executable, "-m", "service.cli.main", "profile", "--out", str(folder), "--json"]
    command = [*asap, *words, "--", *launch, str(SCRIPT)]
    return subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=300, check=False)


def test_every_rank_leaves_a_trace_and_a_summary_that_agree(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from tools.trace.folder import profile_folder

    result = _profile(tmp_path)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1]
    assert all(rank["overhead_ratio"] is not None for rank in report["ranks"])
    traces = profile_folder(tmp_path).ranks
    summaries = [one for one in (tmp_path / "summaries").iterdir() if "summary" in one.name]
    assert len(traces) == len(summaries) == 2
    assert all(len(rank.steps) == 3 for rank in traces)
    again = profile_folder(tmp_path / "summaries")
    assert again.unreadable == []
    assert [rank.breakdown for rank in again.ranks] == [rank.breakdown for rank in traces]


def test_raw_traces_need_not_be_kept(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert _profile(tmp_path, "--summaries-only").returncode == 0
    assert list(tmp_path.glob("*.json.gz")) == []
    assert len(list((tmp_path / "summaries").glob("*.summary.json"))) == 2
