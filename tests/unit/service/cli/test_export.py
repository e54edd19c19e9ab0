"""`asap export` of today's plan, and of a proposal that a report holds."""

import json

import pytest

from tests.unit.service.cli.commands import EXAMPLE, Asap

EXPORT = ("export", EXAMPLE, "--format", "megatron")
PLAN = json.loads(EXAMPLE.read_text())["plan"]
REPORT = {"proposals": [{"plan": PLAN}, {"plan": PLAN | {"tp": 4, "dp": 4, "dp_shard": 4}}]}


@pytest.mark.parametrize(("options", "tp"), [((), 8), (("--report", REPORT, "--proposal", "2"), 4)])
def test_todays_plan_or_a_proposal_of_a_report_is_written(
    asap: Asap, options: tuple[object, ...], tp: int
) -> None:
    result = asap(*EXPORT, *options)
    assert result.status == 0
    assert f"--tensor-model-parallel-size {tp}" in result.out


@pytest.mark.parametrize("rank", ["0", "3", "-1"])
def test_a_proposal_that_is_not_there_is_refused(asap: Asap, rank: str) -> None:
    result = asap(*EXPORT, "--report", REPORT, "--proposal", rank)
    assert result.status == 2
    assert "--proposal" in result.err


@pytest.mark.parametrize(
    "content", [{}, {"proposals": 3}, {"proposals": ["x"]}, {"proposals": [{"plan": 7}]}]
)
def test_what_is_no_report_is_refused(asap: Asap, content: object) -> None:
    assert asap(*EXPORT, "--report", content).refused
