"""What runs of one cluster make of the cost model: as far as they bear it out, never further."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.physics.scenes import scene
from tools.model.calibration import Calibration, calibrated_to, shipped_calibration
from tools.model.constants import resolve
from tools.model.predict import predict
from tools.model.runs import Measured, Run
from tools.model.update import calibrate
from tools.physics.encode import encode
from tools.scenario import Scenario


def scenario(device: str = "h100-sxm-80gb", devices: int = 32, **plan: int | str) -> Scenario:
    words = {"device": device, "devices": devices, "batch": 256, "recompute": "full", **plan}
    return scene("llama-3.1-8b", **words).scenario


PLANS = [
    scenario(tp=2),
    scenario(tp=4),
    scenario(tp=8, micro_batch_size=2),
    scenario(tp=2, pp=2),
    scenario(pp=4, micro_batch_size=2),
    scenario(devices=64, tp=2, cp=2),
]
OTHERS = [scenario(tp=4, pp=2), scenario(devices=16, tp=2), scenario(tp=2, micro_batch_size=2)]


def seconds(scenarios: list[Scenario], calibration: Calibration | None = None) -> np.ndarray:
    return np.array([p.step_time_s for p in predict(scenarios, calibration)])


def timed(scenarios: list[Scenario], times_s: np.ndarray) -> list[Run]:
    return [
        Run(scenario=s, measured=Measured(step_time_s=float(t)), id=f"run {i}")
        for i, (s, t) in enumerate(zip(scenarios, times_s, strict=True))
    ]


def error(calibration: Calibration | None, truth_s: np.ndarray) -> float:
    return float(np.abs(np.log(seconds(OTHERS, calibration) / truth_s)).mean())


@settings(deadline=None, max_examples=15)
@given(factor=st.floats(0.75, 1.4), count=st.integers(1, 6))
def test_runs_slower_by_a_factor_move_other_plans_toward_it_and_never_past_it(
    factor: float, count: int
) -> None:
    learned = calibrate(timed(PLANS[:count], seconds(PLANS[:count]) * factor))
    ratios = seconds(OTHERS, learned.calibration) / seconds(OTHERS)
    assert not learned.left_out
    low, high = sorted((1.0, factor))
    assert np.all((ratios > low * 0.99) & (ratios < high * 1.01))


def test_a_plan_that_was_run_is_predicted_as_measured_and_another_one_part_of_the_way() -> None:
    usual_s = seconds(PLANS[:2])
    learned = calibrate(timed(PLANS[:1], usual_s[:1] * 1.2)).calibration
    ran, another = seconds(PLANS[:2], learned) / usual_s
    assert ran == pytest.approx(1.2)
    assert 1.01 < another < 1.2


def width(scenario: Scenario, calibration: Calibration | None = None) -> float:
    prediction = predict([scenario], calibration)[0]
    return math.log(prediction.step_time_high_s / prediction.step_time_low_s)


def test_more_runs_say_more_and_narrow_the_interval() -> None:
    truth_s = seconds(OTHERS) * 1.25
    errors, widths = [], []
    for count in (1, 3, 6):
        learned = calibrate(timed(PLANS[:count], seconds(PLANS[:count]) * 1.25)).calibration
        errors.append(error(learned, truth_s))
        widths.append(width(OTHERS[0], learned))
    assert errors == sorted(errors, reverse=True)
    assert widths == sorted(widths, reverse=True)
    assert errors[-1] < 0.3 * error(None, truth_s)


def test_runs_as_predicted_never_widen_the_interval_and_runs_that_contradict_each_other_do() -> None:
    usual_s = seconds(PLANS[:3])
    borne_out = calibrate(timed(PLANS[:3], usual_s * np.array([1.02, 1.0, 0.98]))).calibration
    assert all(width(plan, borne_out) <= width(plan) + 1e-9 for plan in OTHERS)
    contradictory = calibrate(timed([PLANS[0]] * 2, usual_s[:1] * np.array([0.7, 1.4]))).calibration
    assert width(PLANS[0], contradictory) > 2.0 * width(PLANS[0], borne_out)


def test_a_constant_that_is_off_is_learned_as_an_offset_where_no_run_shows_its_terms() -> None:
    name = "gemm_efficiency"
    _, keys = encode([PLANS[0]])
    usual = float(getattr(resolve(keys, shipped_calibration().shifts), name))
    truth = calibrated_to(shipped_calibration(), keys, {name: usual * 0.8})
    runs = [scenario(tp=t, micro_batch_size=m) for t in (1, 2, 4, 8) for m in (1, 2)]
    learned = calibrate(timed(runs, seconds(runs, truth)))
    assert not learned.constants
    assert learned.calibration.shifts == shipped_calibration().shifts
    assert error(learned.calibration, seconds(OTHERS, truth)) < 0.3 * error(None, seconds(OTHERS, truth))


def test_where_runs_of_one_plan_differ_a_single_run_of_another_plan_is_believed_less() -> None:
    def gap(factor: float) -> float:
        plans = [*PLANS[:2], *PLANS[:2], PLANS[2]]
        times_s = seconds(plans) * np.array([1.0, 1.0, factor, factor, 1.3])
        learned = calibrate(timed(plans, times_s)).calibration
        return abs(math.log(seconds([PLANS[2]], learned)[0] / times_s[-1]))

    assert gap(1.0) == pytest.approx(0.0, abs=1e-6)
    assert gap(1.5) > 0.03


@pytest.mark.parametrize("factor", [3.0, 1 / 3.0])
def test_a_run_off_by_a_factor_of_three_is_named_and_left_out(factor: float) -> None:
    times_s = seconds(PLANS) * 1.1
    good = calibrate(timed(PLANS, times_s)[:2] + timed(PLANS, times_s)[3:])
    times_s[2] *= factor
    learned = calibrate(timed(PLANS, times_s))
    assert [run.id for run in learned.left_out] == ["run 2"]
    assert seconds(OTHERS, learned.calibration) == pytest.approx(seconds(OTHERS, good.calibration))


def test_a_run_off_by_a_factor_still_says_what_its_own_plan_takes_and_is_doubted() -> None:
    times_s = seconds(PLANS) * np.array([1.1, 1.1, 3.3, 1.1, 1.1, 1.1])
    learned = calibrate(timed(PLANS, times_s)).calibration
    assert seconds(PLANS, learned) == pytest.approx(times_s)
    assert width(PLANS[2], learned) > 4.0 * width(PLANS[0], learned)
    again = [*timed(PLANS, times_s), *timed(PLANS[2:3], times_s[2:3] / 3.0)]
    both = calibrate(again).calibration  # a second run of the plan is as the others allow
    assert seconds(PLANS[2:3], both) == pytest.approx(times_s[2:3] / 3.0)


def test_reported_runs_keep_their_doubts_beside_trials_of_the_session() -> None:
    times_s = seconds(PLANS) * np.array([1.1, 1.1, 3.3, 1.1, 1.1, 1.1])
    runs = timed(PLANS, times_s)
    assert [run.id for run in calibrate(runs[:4], own=runs[4:]).left_out] == ["run 2"]
    assert not calibrate(runs[:2], own=runs[2:]).left_out


def test_of_two_devices_under_one_name_the_fewer_runs_speak_for_their_own_plans_alone() -> None:
    elsewhere, near = [scenario("a100-sxm-80gb", tp=2)], [scenario("a100-sxm-80gb", tp=4)]
    hopper = timed(PLANS[:2], seconds(PLANS[:2]) * 1.2)
    learned = calibrate([*hopper, *timed(elsewhere, seconds(elsewhere) * 1.6)])
    assert [run.number for run in learned.left_out] == [2]
    assert seconds(elsewhere, learned.calibration) == pytest.approx(seconds(elsewhere) * 1.6)
    assert seconds(near, learned.calibration) == pytest.approx(seconds(near))
    assert seconds(OTHERS, learned.calibration) == pytest.approx(
        seconds(OTHERS, calibrate(hopper).calibration)
    )


@pytest.mark.parametrize("factor", [1000.0, 0.001])
def test_a_run_in_another_unit_is_named_and_changes_nothing(factor: float) -> None:
    learned = calibrate(timed(PLANS[:1], seconds(PLANS[:1]) * factor))
    assert len(learned.left_out) == 1
    assert seconds(OTHERS, learned.calibration) == pytest.approx(seconds(OTHERS))


def test_a_single_run_far_off_is_taken_in_part_and_the_interval_says_how_little_is_known() -> None:
    learned = calibrate(timed(PLANS[:1], seconds(PLANS[:1]) * 3.0))
    ratios = seconds(OTHERS, learned.calibration) / seconds(OTHERS)
    assert not learned.left_out
    assert np.all((ratios > 1.2) & (ratios < 2.7))
    assert all(width(plan, learned.calibration) > 3.0 * width(plan) for plan in OTHERS)


def test_what_one_plan_is_off_beyond_every_cluster_is_that_plan_s_until_a_second_one_shows_it() -> None:
    def moved(factor: float, plans: int) -> float:
        learned = calibrate(timed(PLANS[:plans], seconds(PLANS[:plans]) * factor)).calibration
        return float(np.median(seconds(OTHERS, learned) / seconds(OTHERS)))

    assert 1.1 < moved(5.0, 1) < moved(3.0, 1) < 1.6
    assert moved(5.0, 2) > 3.0


def test_a_cluster_slower_than_every_published_run_of_its_kind_is_taken_and_named_first() -> None:
    runs = timed(PLANS, seconds(PLANS) * 2.5)
    again = timed(PLANS[:1], seconds(PLANS[:1]) * 3.5)[0].model_copy(update={"id": "again"})
    first, second = calibrate([*runs, again]).findings
    assert (first.kind, second.kind) == ("far off", "contradiction")
    assert "times slower than the formulas say" in first.message
    assert "asap probe" in first.measure
    assert "run 0 and again are runs of one plan and differ by 1.40 times" in second.message


def test_a_cluster_s_memory_shift_scales_every_part_of_the_peak() -> None:
    learned = calibrate(timed(PLANS, seconds(PLANS))).calibration
    assert learned.cluster is not None
    shifted = replace(learned, cluster=replace(learned.cluster, memory_shift=0.1))
    for before, after in zip(predict(OTHERS), predict(OTHERS, shifted), strict=True):
        scaled = {part: gib * math.exp(0.1) for part, gib in before.memory_gib.items()}
        assert after.memory_gib == pytest.approx(scaled)


def test_the_error_after_is_that_of_really_leaving_each_run_out() -> None:
    times_s = seconds(PLANS) * np.array([1.1, 1.2, 1.15, 1.05, 1.12, 1.18])
    learned = calibrate(timed(PLANS, times_s))
    for number, run in enumerate(learned.checked):
        others = [i for i in range(len(PLANS)) if i != number]
        without = calibrate(timed([PLANS[i] for i in others], times_s[others]))
        assert run.after_s == pytest.approx(seconds(PLANS, without.calibration)[number], rel=0.01)


def test_peaks_and_crashes_move_the_probability_of_fitting() -> None:
    def likely(runs: list[Run]) -> float:
        return predict([tight], calibrate(runs).calibration)[0].fit_probability

    tight = min(
        (scenario(tp=t, recompute="none", micro_batch_size=m) for t in (1, 2, 4) for m in (1, 2, 4)),
        key=lambda s: abs(predict([s])[0].fit_probability - 0.5),
    )
    peak = predict([tight])[0].peak_memory_gib
    before = predict([tight])[0].fit_probability
    assert 0.02 < before < 0.98
    assert likely([Run(scenario=tight, measured=Measured(), crashed=True)]) < before
    assert likely([Run(scenario=tight, measured=Measured(peak_memory_gib=peak * 0.85))]) > before
    assert (
        likely([Run(scenario=tight, measured=Measured(peak_memory_gib=min(peak * 1.1, 79.5)))] * 3)
        < before + 0.1
    )
