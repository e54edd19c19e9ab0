"""`asap export` of today's plan, and of a proposal that a report holds."""

import json
from pathlib import Path
from typing import Any

import pytest

from service.cli.main import main

EXAMPLE = Path(__file__).resolve().parents[3] / "examples/llama-3.1-70b-64xh100.json"
PLAN = json.loads(EXAMPLE.read_text())["plan"]
PROPOSED = PLAN | {"tp": 4, "dp": 4, "dp_shard": 4}


def export(*words: str) -> int:
    return main(["export", str(EXAMPLE), "--format", "megatron", *words])


@pytest.fixture
def report(tmp_path: Path) -> str:
    file = tmp_path / "report.json"
    file.write_text(json.dumps({"proposals": [{"plan": PLAN}, {"plan": PROPOSED}]}))
    return str(file)


def test_without_a_report_todays_plan_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert export() == 0
    assert "--tensor-model-parallel-size 8" in capsys.readouterr().out


def test_a_proposal_of_a_report_is_written(report: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert export("--report", report, "--proposal", "2") == 0
    assert "--tensor-model-parallel-size 4" in capsys.readouterr().out


@pytest.mark.parametrize("rank", ["0", "3", "-1"])
def test_a_proposal_that_is_not_there_is_refused(
    rank: str, report: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export("--report", report, "--proposal", rank) == 2
    assert "--proposal" in capsys.readouterr().err


@pytest.mark.parametrize(
    "content", [{}, {"proposals": 3}, {"proposals": ["x"]}, {"proposals": [{"plan": 7}]}]
)
def test_what_is_no_report_is_refused(
    content: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other.json").write_text(json.dumps(content))
    assert export("--report", str(tmp_path / "other.json")) == 2
    assert capsys.readouterr().err.count("\n") == 1
