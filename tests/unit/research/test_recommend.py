"""The recommender benchmark, on workloads whose answer is known, and what it says without data."""

import re
from pathlib import Path

import pytest

from research import recommend
from research.published import Measurement, SweptPlan
from research.recommend import Advice, main, print_agreement, print_sweeps
from tests.unit.recommend.cases import MIXTRAL, llama
from tools.recommend.optimize import optimize
from tools.scenario import Plan, Scenario, parse_scenario


def measured(s: Scenario, step_time_s: float, source: str = "x") -> Measurement:
    return Measurement(source, source, source, s, frozenset(Plan.model_fields), step_time_s, None)


def with_plan(s: Scenario, plan: Plan) -> Scenario:
    return s.model_copy(update={"plan": plan})


def swept(s: Scenario, plan: Plan, step_time_s: float | None) -> SweptPlan:
    run = with_plan(s, plan)
    return SweptPlan("a workload", run, None if step_time_s is None else measured(run, step_time_s))


def line_of(way: str, out: str) -> str:
    return next(line for line in out.splitlines() if line.startswith(way))


def test_experts_who_take_our_first_proposal_agree_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Two sources with the same experts: what one teaches is what the other did."""
    experts = []
    for number, raw in enumerate((llama(), MIXTRAL, llama(), MIXTRAL)):
        s = parse_scenario({**raw, "plan": None}, need_plan=False)
        experts.append(measured(with_plan(s, optimize(s).proposals[0].plan), 1.0, f"source {number // 2}"))
    print_agreement(experts, frozen=False)
    out = capsys.readouterr().out
    first, three, five = (int(share) for share in re.findall(r"(\d+)% of 4", line_of("ours", out)))
    assert first <= three <= five
    assert five == 100
    assert "accept: 12 of 12" in out


def test_regret_is_measured_on_the_plans_of_a_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    s = parse_scenario({**llama(), "plan": None}, need_plan=False)
    plans = [proposal.plan for proposal in optimize(s).proposals]
    print_sweeps([swept(s, plans[0], 1.0), swept(s, plans[1], 2.0), swept(s, plans[2], None)])
    first = line_of("ours", capsys.readouterr().out)
    assert first.split()[1:4] == ["100%", "of", "1"]
    assert first.endswith("1 of 3")
    print_sweeps([swept(s, plans[0], 2.0), swept(s, plans[1], 1.0)])
    slower = line_of("ours", capsys.readouterr().out)
    assert slower.split()[1:4] == ["0%", "of", "1"]
    assert slower.split()[5:8] == ["100%", "of", "1"]


def test_a_crash_is_a_miss_and_what_nobody_measured_is_left_out() -> None:
    crashed = Advice((float("inf"), 0.03, None))
    assert (crashed.first_within(0.1), crashed.any_within(0.05), crashed.crashes) == (False, True, 1)
    unmeasured = Advice((None, None))
    assert (unmeasured.first_within(0.1), unmeasured.any_within(0.05), unmeasured.crashes) == (None, None, 0)


def test_without_measurements_it_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # long paths are shortened in messages
    monkeypatch.setattr(recommend, "MEASUREMENTS", Path("absent.jsonl"))
    assert main() == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "absent.jsonl" in captured.err
