"""What runs of one cluster make of the cost model: as far as they bear it out, never further."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.calibrate.runs import Measured, Run
from tools.calibrate.update import Calibrated, calibrate
from tools.cost.calibration import Calibration, calibrated_to, shipped_calibration
from tools.cost.constants import resolve
from tools.cost.encode import encode
from tools.cost.predict import predict
from tools.cost.reference import reference_prediction
from tools.scenario import Scenario, parse_scenario

MODEL = {
    "name": "Llama-3.1-8B", "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
}  # fmt: skip
TRAINING = {"seq_len": 4096, "global_batch_size": 256, "precision": "bf16", "framework": "megatron-core"}


def scenario(device: str = "h100-sxm-80gb", devices: int = 32, **plan: int | str) -> Scenario:
    degrees = {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "micro_batch_size": 1, "zero_stage": 1, **plan}
    dp = devices // (int(degrees["tp"]) * int(degrees["pp"]) * int(degrees["cp"]))
    cluster = {"device": device, "num_devices": devices, "devices_per_node": 8}
    stated = {"dp": dp, "dp_shard": dp, "recompute": "full", **degrees}
    return parse_scenario({"model": MODEL, "cluster": cluster, "training": TRAINING, "plan": stated})


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
        Run(s, Measured(step_time_s=float(t)), id=f"run {i}")
        for i, (s, t) in enumerate(zip(scenarios, times_s, strict=True))
    ]


def error(calibration: Calibration | None, truth_s: np.ndarray) -> float:
    return float(np.abs(np.log(seconds(OTHERS, calibration) / truth_s)).mean())


def test_no_run_changes_nothing() -> None:
    assert calibrate([]).calibration == shipped_calibration()


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


def test_a_run_of_our_own_is_predicted_as_it_was_measured_and_a_reported_one_most_of_the_way() -> None:
    usual_s = seconds(PLANS[:1])
    run = timed(PLANS[:1], usual_s * 1.2)
    own_s = seconds(PLANS[:1], calibrate(run, own=True).calibration)
    reported_s = seconds(PLANS[:1], calibrate(run).calibration)
    assert own_s[0] / usual_s[0] == pytest.approx(1.2, rel=0.01)
    assert 1.0 + 0.2 * 2 / 3 < reported_s[0] / usual_s[0] < 1.2


def test_more_runs_say_more_and_narrow_the_interval() -> None:
    truth_s = seconds(OTHERS) * 1.25
    errors, widths = [], []
    for count in (0, 1, 3, 6):
        learned = calibrate(timed(PLANS[:count], seconds(PLANS[:count]) * 1.25)).calibration
        errors.append(error(learned, truth_s))
        first = predict(OTHERS, learned)[0]
        widths.append(math.log(first.step_time_high_s / first.step_time_low_s))
    assert errors == sorted(errors, reverse=True)
    assert widths == sorted(widths, reverse=True)
    assert errors[-1] < 0.3 * errors[0]


def test_runs_that_tell_terms_apart_move_the_constant_that_is_off_most() -> None:
    name = "gemm_efficiency"
    _, keys = encode([PLANS[0]])
    usual = float(getattr(resolve(keys, shipped_calibration().shifts), name))
    truth = calibrated_to(shipped_calibration(), keys, {name: usual * 0.8})
    runs = [scenario(tp=t, micro_batch_size=m) for t in (1, 2, 4, 8) for m in (1, 2)]
    learned = calibrate(timed(runs, seconds(runs, truth)))
    assert learned.constants[0].name == name
    assert error(learned.calibration, seconds(OTHERS, truth)) < 0.3 * error(None, seconds(OTHERS, truth))


@pytest.mark.parametrize("factor", [3.0, 1 / 3.0])
def test_a_run_off_by_a_factor_of_three_is_named_and_left_out(factor: float) -> None:
    times_s = seconds(PLANS) * 1.1
    good = calibrate(timed(PLANS, times_s)[:2] + timed(PLANS, times_s)[3:])
    times_s[2] *= factor
    learned = calibrate(timed(PLANS, times_s))
    assert [run.id for run in learned.left_out] == ["run 2"]
    assert seconds(OTHERS, learned.calibration) == pytest.approx(seconds(OTHERS, good.calibration))


@pytest.mark.parametrize("factor", [3.0, 1000.0, 0.001])
def test_a_single_wrong_run_changes_nothing(factor: float) -> None:
    learned = calibrate(timed(PLANS[:1], seconds(PLANS[:1]) * factor))
    assert len(learned.left_out) == 1
    assert seconds(OTHERS, learned.calibration) == pytest.approx(seconds(OTHERS))


def test_a_run_of_another_device_is_named() -> None:
    runs = timed(PLANS[:3], seconds(PLANS[:3])) + timed([scenario("a100-sxm-80gb", tp=2)], np.array([9.0]))
    learned = calibrate(runs)
    assert [(run.number, "a100" in run.why) for run in learned.left_out] == [(3, True)]


def test_a_cluster_unlike_all_others_is_believed_when_its_runs_agree() -> None:
    learned = calibrate(timed(PLANS, seconds(PLANS) * 2.5))
    assert not learned.left_out
    assert error(learned.calibration, seconds(OTHERS) * 2.5) < 0.2


def test_another_device_is_predicted_as_before() -> None:
    learned = calibrate(timed(PLANS, seconds(PLANS) * 1.3)).calibration
    elsewhere = [scenario("a100-sxm-80gb", tp=2)]
    assert predict(elsewhere, learned) == predict(elsewhere)


def with_memory(learned: Calibrated, shift: float) -> Calibration:
    assert learned.calibration.cluster is not None
    return replace(learned.calibration, cluster=replace(learned.calibration.cluster, memory_shift=shift))


def test_the_reference_computes_the_same_calibrated_prediction() -> None:
    calibration = with_memory(calibrate(timed(PLANS, seconds(PLANS) * 1.2)), 0.1)
    for case in OTHERS:
        prediction, reference = predict([case], calibration)[0], reference_prediction(case, calibration)
        assert reference.breakdown_s == pytest.approx(prediction.breakdown_s, rel=1e-9)
        assert reference.memory_gib == pytest.approx(prediction.memory_gib, rel=1e-9)


def test_the_error_after_is_that_of_really_leaving_each_run_out() -> None:
    times_s = seconds(PLANS) * np.array([1.1, 1.2, 1.15, 1.05, 1.12, 1.18])
    learned = calibrate(timed(PLANS, times_s))
    for number, run in enumerate(learned.checked):
        others = [i for i in range(len(PLANS)) if i != number]
        without = calibrate(timed([PLANS[i] for i in others], times_s[others]))
        assert run.after_s == pytest.approx(seconds(PLANS, without.calibration)[number], rel=0.01)


def test_a_calibration_survives_being_stored() -> None:
    learned = calibrate(timed(PLANS, seconds(PLANS) * 1.2)).calibration
    assert predict(OTHERS, Calibration.from_data(learned.to_data())) == predict(OTHERS, learned)


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
    assert likely([Run(tight, Measured(), crashed=True)]) < before
    assert likely([Run(tight, Measured(peak_memory_gib=peak * 0.85))]) > before
    assert likely([Run(tight, Measured(peak_memory_gib=min(peak * 1.1, 79.5)))] * 3) < before + 0.1
