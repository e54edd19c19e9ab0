"""The recommender benchmark, on workloads whose answer is known, and what it says without data."""

from pathlib import Path

import pytest

from research import recommend
from research.published import Measurement, offer
from research.recommend import main, print_agreement, print_choices
from tests.unit.recommend.cases import MIXTRAL, llama
from tools.cost.predict import predict
from tools.recommend.optimize import optimize
from tools.scenario import Plan, Scenario, parse_scenario


def measured(s: Scenario, step_time_s: float, name: str = "x") -> Measurement:
    return Measurement(name, "paper", name, s, frozenset(Plan.model_fields), step_time_s, None)


def with_plan(s: Scenario, plan: object) -> Scenario:
    return s.model_copy(update={"plan": Plan.model_validate(plan)})


def test_an_expert_who_takes_our_proposal_agrees_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    experts: list[Measurement] = []
    for raw in (llama(), MIXTRAL):
        s = parse_scenario(raw | {"constraints": {"max_memory_fraction": 1.0}})
        found = optimize(s).proposals
        experts.append(
            measured(with_plan(s, found[1].plan), 1.0, raw["training"]["framework"] + str(len(experts)))
        )
    print_agreement([offer(expert) for expert in experts])
    out = capsys.readouterr().out
    paper = next(line.split() for line in out.splitlines() if line.startswith("paper"))
    assert paper[1] == "2"
    assert int(paper[3].rstrip("%")) >= int(paper[2].rstrip("%"))
    assert out.splitlines()[-1] == "proposals that the framework accepts: 6 of 6"


def choices(times_s: list[float], capsys: pytest.CaptureFixture[str]) -> str:
    s = parse_scenario(llama())
    assert s.plan is not None
    plans = [s.plan.model_copy(update={"recompute": name}) for name in ("none", "selective", "full")]
    predicted = [p.step_time_s for p in predict([with_plan(s, p.model_dump()) for p in plans])]
    assert predicted == sorted(predicted)
    print_choices([measured(with_plan(s, p.model_dump()), t) for p, t in zip(plans, times_s, strict=True)])
    return capsys.readouterr().out


def test_a_ranking_that_agrees_picks_the_best(capsys: pytest.CaptureFixture[str]) -> None:
    out = choices([1.0, 2.0, 3.0], capsys)
    assert "workloads with several measured plans: 1" in out
    assert "slower than the best measured by 0.0%" in out
    assert "mean: 1.00" in out


def test_a_ranking_that_is_reversed_picks_the_worst(capsys: pytest.CaptureFixture[str]) -> None:
    out = choices([3.0, 2.0, 1.0], capsys)
    assert "slower than the best measured by 200.0%" in out
    assert "mean: -1.00" in out


def test_without_measurements_it_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # long paths are shortened in messages
    monkeypatch.setattr(recommend, "MEASUREMENTS", Path("absent.jsonl"))
    assert main() == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "absent.jsonl" in captured.err
