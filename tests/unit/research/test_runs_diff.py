"""`make runs-diff` in a repo of two commits: what a reviewer is told of a change of runs or model."""

import subprocess
from pathlib import Path

import pytest

from research import runs_diff
from research.runs_diff import DATA
from research.validate import to_json
from tools.model.validation import MemoryScore, Score, Validation

SCORE = Score(
    section="mean over sources", grouped_by="rows", name="all",
    rows=7, mape=0.2, median=0.1, bias=0.0, within_10=0.5, coverage=0.8,
)  # fmt: skip
MEMORY = MemoryScore(name="published runs", rows=3, mape=0.1, fits_share=0.9)


def validation(mape: float, **sources: float) -> str:
    each = [
        SCORE.model_copy(update={"section": "by source", "grouped_by": "source", "name": name, "mape": error})
        for name, error in sources.items()
    ]
    rows = (SCORE.model_copy(update={"mape": mape}), *each)
    return to_json(Validation(rows=rows, memory=(MEMORY,), points=()))


def git(repo: Path, *arguments: str) -> None:
    me = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", *me, *arguments], cwd=repo, check=True, capture_output=True)


def commit(repo: Path, **files: str) -> None:
    for name, text in files.items():
        file = repo / {"scores": DATA, "rows": "runs/acme.jsonl"}[name]
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    git(repo, "add", ".")
    git(repo, "commit", "-m", "change")


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(runs_diff, "REPO", tmp_path)
    git(tmp_path, "init", "-b", "main")
    commit(tmp_path, scores=validation(0.2, acme=0.3, other=0.1), rows="{}")
    return tmp_path


def test_a_branch_is_compared_with_where_it_left_main(repo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    git(repo, "checkout", "-b", "more-runs")
    commit(repo, scores=validation(0.15, acme=0.25, other=0.1, new=0.05), rows="{} {}")
    git(repo, "checkout", "main")
    commit(repo, scores=validation(0.9, acme=0.9, other=0.9))
    git(repo, "checkout", "more-runs")
    assert runs_diff.main([]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == [
        "| all | 7 | 7 | 20.0% | 15.0% | 80% | 80% |",
        "| acme | 7 | 7 | 30.0% | 25.0% | 80% | 80% |",
        "| new | – | 7 | – | 5.0% | – | 80% |",
        "",
        "1 sources are as before.",
    ]
