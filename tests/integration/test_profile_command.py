"""`asap profile` around real training processes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
SCRIPT = REPO / "examples" / "traces" / "ddp-gloo-straggler" / "train.py"
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2")

pytestmark = pytest.mark.real


def profile(
    folder: Path, *words: object, options: tuple[str, ...] = ()
) -> dict[str, list[dict[str, object]]]:
    pytest.importorskip("torch")
    asap = [sys.executable, "-m", "service.cli.main", "profile", "--out", str(folder), "--json", *options]
    command = [*asap, "--", sys.executable, *map(str, words)]
    result = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    report: dict[str, list[dict[str, object]]] = json.loads(result.stdout)
    return report


def test_every_rank_leaves_a_trace_and_a_summary_that_agree(tmp_path: Path) -> None:
    from tools.trace.folder import profile_folder

    report = profile(tmp_path, *TORCHRUN, SCRIPT)
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1]
    assert all(rank["overhead_ratio"] is not None for rank in report["ranks"])
    traces = profile_folder(tmp_path).ranks
    summaries = [path for path in (tmp_path / "summaries").iterdir() if "summary" in path.name]
    assert len(traces) == len(summaries) == 2
    assert all(len(rank.steps) == 3 for rank in traces)
    again = profile_folder(tmp_path / "summaries")
    assert again.unreadable == []
    assert [rank.breakdown for rank in again.ranks] == [rank.breakdown for rank in traces]
