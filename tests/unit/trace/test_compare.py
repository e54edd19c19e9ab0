"""Traces before and after a change, and measured against predicted."""

import json
from pathlib import Path

import pytest

from tests.unit.trace.builders import rank_profile
from tools.errors import InputError
from tools.scenario import Scenario, parse_scenario
from tools.trace.breakdown import Breakdown, StepProfile
from tools.trace.compare import KernelChange, check_prediction, compare
from tools.trace.rank_profile import KernelTotal, RankProfile


def _run(total_ns: int, steps: int, kernel_ns: int) -> RankProfile:
    kernels = [KernelTotal("gemm", "compute", 1, kernel_ns)]
    return rank_profile(
        breakdown=Breakdown(compute_ns=total_ns, total_ns=total_ns), steps=steps, top_kernels=kernels
    )


def test_steps_are_compared_not_traces_of_different_length() -> None:
    result = compare([_run(10_000, 3, 30_000)], [_run(5_000, 6, 30_000)])
    assert result.speedup == 2.0
    assert result.per == "rank and step"


def test_where_one_side_marks_no_steps_whole_traces_are_compared() -> None:
    marked, unmarked = _run(12_000, 3, 6_000), _run(12_000, 0, 6_000)
    marked.steps = [StepProfile(number, 0, Breakdown(total_ns=4_000)) for number in range(3)]
    for result in (compare([marked], [unmarked]), compare([unmarked], [marked])):
        assert (result.per, result.speedup) == ("rank", 1.0)
        assert result.kernels[0].change_us == 0.0


def test_each_term_has_its_change() -> None:
    result = compare([_run(10_000, 2, 0)], [_run(15_000, 2, 0)])
    (compute,) = [term for term in result.terms if term.term == "compute"]
    assert (compute.change_us, compute.ratio) == (5.0, 1.5)


def test_kernels_are_compared_per_step() -> None:
    result = compare([_run(10_000, 2, 8_000)], [_run(10_000, 4, 8_000)])
    assert result.kernels[0] == KernelChange(name="gemm", before_us=4.0, after_us=2.0, change_us=-2.0)


def test_a_term_that_was_zero_has_no_ratio() -> None:
    result = compare([_run(10_000, 2, 0)], [_run(10_000, 2, 0)])
    (memory,) = [term for term in result.terms if term.term == "memory"]
    assert memory.ratio is None


EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "traces" / "gpt-ddp-gloo" / "base.json"
SECOND = 1_000_000_000


def _scenario() -> Scenario:
    return parse_scenario(json.loads(EXAMPLE.read_text()))


def _profile(steps: int = 2, world_size: int = 2, compute_ns: int = SECOND // 2) -> RankProfile:
    terms = Breakdown(compute_ns=compute_ns, idle_ns=SECOND - compute_ns, total_ns=SECOND)
    kernels = {"matrix_kernel_ns": 80, "other_kernel_ns": 20}
    return rank_profile(breakdown=terms, steps=steps, world_size=world_size, **kernels)


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
    empty = rank_profile(1, basis="host")
    with_empty = check_prediction([_profile(), empty], _scenario())
    assert with_empty.comparison == check_prediction([_profile()], _scenario()).comparison
    with pytest.raises(InputError, match="DIR"):
        check_prediction([empty], _scenario())
