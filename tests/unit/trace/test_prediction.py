"""Measured beside predicted: the rows, and what is said when they do not fit together."""

import json
from pathlib import Path

import pytest

from tools.errors import InputError
from tools.scenario import Scenario, parse_scenario
from tools.trace.breakdown import Breakdown, StepProfile
from tools.trace.compare import check_prediction
from tools.trace.rank_profile import RankProfile

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "traces" / "gpt-ddp-gloo" / "base.json"
SECOND = 1_000_000_000


def _scenario() -> Scenario:
    return parse_scenario(json.loads(EXAMPLE.read_text()))


def _profile(steps: int = 2, world_size: int = 2, compute_ns: int = SECOND // 2) -> RankProfile:
    step = Breakdown(compute_ns=compute_ns, idle_ns=SECOND - compute_ns, total_ns=SECOND)
    return RankProfile(
        file="f",
        rank=0,
        basis="device",
        world_size=world_size,
        breakdown=step,
        steps=[StepProfile(number, number * SECOND, step) for number in range(steps)],
        matrix_kernel_ns=80,
        other_kernel_ns=20,
        num_work_events=1,
    )


def test_a_term_that_only_the_model_has_is_shown_too() -> None:
    rows = {row.term: row for row in check_prediction([_profile()], _scenario()).comparison.terms}
    assert rows["dp_comm_exposed"].measured_s == 0
    assert rows["dp_comm_exposed"].predicted_s > 0
    assert rows["dp_comm_exposed"].predicted_error_ratio is None


def test_the_predicted_terms_add_up_to_the_predicted_step() -> None:
    data = check_prediction([_profile()], _scenario()).comparison
    for key in ("predicted_s", "calibrated_s", "measured_s"):
        assert sum(getattr(row, key) for row in data.terms) == pytest.approx(getattr(data.step_time, key))


def test_another_number_of_ranks_is_said() -> None:
    (note,) = check_prediction([_profile(world_size=8)], _scenario()).comparison.notes
    assert "8 ranks" in note


def test_a_trace_without_steps_is_said() -> None:
    data = check_prediction([_profile(steps=0)], _scenario()).comparison
    assert (data.per, data.num_steps) == ("trace", 0)
    assert any("no steps are marked" in note for note in data.notes)
    assert data.coefficients == []


def test_constants_at_their_bounds_make_the_scenario_doubtful() -> None:
    notes = check_prediction([_profile(compute_ns=SECOND // 10**6)], _scenario()).comparison.notes
    assert any("is this the scenario" in note for note in notes)


def test_ranks_without_work_do_not_count() -> None:
    empty = RankProfile(file="e", rank=1, basis="host", breakdown=Breakdown())
    with_empty = check_prediction([_profile(), empty], _scenario())
    assert with_empty.comparison == check_prediction([_profile()], _scenario()).comparison
    with pytest.raises(InputError, match="DIR"):
        check_prediction([empty], _scenario())
