"""Traces before and after a change, and measured against predicted."""

import json
from pathlib import Path

import pytest

from tests.unit.trace.builders import rank_profile
from tools.errors import InputError
from tools.scenario import parse_scenario
from tools.trace.breakdown import Breakdown
from tools.trace.compare import PredictionComparison, check_prediction, compare
from tools.trace.rank_profile import RankProfile

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "traces" / "gpt-ddp-gloo" / "base.json"
SCENARIO = parse_scenario(json.loads(EXAMPLE.read_text()))
SECOND = 1_000_000_000


def _run(total_ns: int, steps: int) -> RankProfile:
    return rank_profile(breakdown=Breakdown(compute_ns=total_ns, total_ns=total_ns), steps=steps)


def test_steps_are_compared_not_traces_of_different_length() -> None:
    result = compare([_run(10_000, 2)], [_run(5_000, 4)])
    assert (result.speedup, result.per) == (2.0, "rank and step")
    terms = {term.term: term for term in result.terms}
    assert (terms["compute"].change_us, terms["compute"].ratio) == (-5.0, 0.5)
    assert terms["memory"].ratio is None


def _profile(steps: int = 2, world_size: int = 2, compute_ns: int = SECOND // 2) -> RankProfile:
    terms = Breakdown(compute_ns=compute_ns, idle_ns=SECOND - compute_ns, total_ns=SECOND)
    kernels = {"matrix_kernel_ns": 80, "other_kernel_ns": 20}
    return rank_profile(breakdown=terms, steps=steps, world_size=world_size, **kernels)


def _compared(*profiles: RankProfile) -> PredictionComparison:
    return check_prediction(list(profiles), SCENARIO).comparison


def test_terms_add_up_to_the_step_and_one_that_only_the_model_has_is_shown_too() -> None:
    data = _compared(_profile())
    for key in ("predicted_s", "calibrated_s", "measured_s"):
        assert sum(getattr(row, key) for row in data.terms) == pytest.approx(getattr(data.step_time, key))
    (row,) = (row for row in data.terms if row.term == "dp_comm_exposed")
    assert (row.measured_s, row.predicted_error_ratio) == (0, None)
    assert row.predicted_s > 0


def test_another_number_of_ranks_missing_steps_and_constants_at_their_bounds_are_noted() -> None:
    (note,) = _compared(_profile(world_size=8)).notes
    assert "8 ranks" in note
    unmarked = _compared(_profile(steps=0))
    assert (unmarked.per, unmarked.num_steps, unmarked.coefficients) == ("trace", 0, [])
    assert any("no steps are marked" in note for note in unmarked.notes)
    doubtful = _compared(_profile(compute_ns=SECOND // 10**6))
    assert any("is this the scenario" in note for note in doubtful.notes)


def test_ranks_without_work_do_not_count() -> None:
    empty = rank_profile(1, basis="host")
    assert _compared(_profile(), empty) == _compared(_profile())
    with pytest.raises(InputError, match="folder"):
        _compared(empty)
