"""A measured step rules over the prediction: it calibrates, it narrows, and no target is slower."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.faults import GPT, TRACES
from tools.model.observations import with_seen
from tools.model.runs import Measured, Run
from tools.recommend.diagnosis import read_profile
from tools.recommend.measured import (
    measured_workload,
    recalibrate,
)
from tools.recommend.optimize import optimize, workload_of
from tools.scenario import parse_scenario
from tools.trace.compare import PredictionComparison, TermComparison

SCENARIO = parse_scenario(GPT)
PLAN = SCENARIO.plan
assert PLAN is not None
WORKLOAD = workload_of(SCENARIO)
MODEL_S = WORKLOAD.predict([PLAN])[0].step_time_s


@given(st.floats(0.6, 1.8))
def test_the_calibrated_model_gives_the_measured_step(ratio: float) -> None:
    assert PLAN is not None
    workload, recalibrated = recalibrate(WORKLOAD, PLAN, ratio * MODEL_S)
    after = workload.predict([PLAN])[0]
    assert recalibrated.calibrated_s == after.step_time_s
    assert after.step_time_s == pytest.approx(ratio * MODEL_S)
    assert sum(after.breakdown_s.values()) == pytest.approx(after.step_time_s)
    before = WORKLOAD.predict([PLAN])[0]
    width = (before.step_time_high_s / before.step_time_low_s, after.step_time_high_s / after.step_time_low_s)
    assert width[1] <= width[0] * (1 + 1e-9)
    assert recalibrated.summary.startswith("measured ")
    assert "recalibrated" in recalibrated.summary


@pytest.mark.parametrize(("others", "factor"), [([], 30.0), ([1.0], 1.0), ([1.2, 1.3], 1.25)])
def test_a_stated_step_that_other_runs_speak_against_is_its_own_plans(
    others: list[float], factor: float
) -> None:
    """A plan of today that is 30 times off made every plan 30 times as slow, and a told run no match."""
    assert PLAN is not None
    plans = [PLAN.model_copy(update={"micro_batch_size": size}) for size in (1, 2)][: len(others)]
    runs = [
        Run(
            scenario=WORKLOAD.with_plan(plan),
            measured=Measured(step_time_s=ratio * WORKLOAD.predict([plan])[0].step_time_s),
            source="notes",
        )
        for plan, ratio in zip(plans, others, strict=True)
    ]
    told = replace(WORKLOAD, calibration=with_seen(WORKLOAD.calibration, runs))
    workload, recalibrated = measured_workload(told, PLAN, None, 30 * MODEL_S)
    assert recalibrated is not None
    assert recalibrated.model_s == pytest.approx(MODEL_S)
    assert workload.predict([PLAN])[0].step_time_s == pytest.approx(30 * MODEL_S)
    unseen = PLAN.model_copy(update={"tp": 4, "dp": 2, "micro_batch_size": 2})
    after, before = workload.predict([unseen])[0], WORKLOAD.predict([unseen])[0]
    assert after.step_time_s == pytest.approx(factor * before.step_time_s)


def test_totals_that_agree_with_other_terms_are_told_apart() -> None:
    def term(name: str, measured_s: float, predicted_s: float) -> TermComparison:
        return TermComparison(
            term=name, measured_s=measured_s, predicted_s=predicted_s, predicted_error_ratio=None,
            calibrated_s=measured_s, calibrated_error_ratio=None,
        )  # fmt: skip

    comparison = PredictionComparison(
        per="step", num_steps=3, step_time=term("step_time", 1.0, 1.02),
        terms=[term("compute", 0.4, 0.8), term("tp_comm_exposed", 0.5, 0.12), term("optimizer", 0.1, 0.1)],
        waiting_s=0.0, coefficients=[], notes=[],
    )  # fmt: skip
    assert comparison.differing_terms == [
        "compute: measured 0.4 s, model 0.8 s",
        "tp_comm_exposed: measured 0.5 s, model 0.12 s",
    ]
    assert comparison.far_apart is None
    far = comparison.model_copy(update={"step_time": term("step_time", 1.0, 2.0)})
    finding = far.far_apart
    assert finding is not None
    assert "2.0 times less" in finding
    assert finding.endswith("; ".join(comparison.differing_terms))


@pytest.mark.skipif(not TRACES.is_dir(), reason="needs the recorded traces of ../shared")
def test_a_measured_fifth_of_computing_does_not_become_two_thirds() -> None:
    """Late hosts, not arithmetic, make this step long; scaled alike, computing would be 68% of it."""
    assert PLAN is not None
    profile = read_profile(str(TRACES / "megatron_tp8"), SCENARIO)
    workload, recalibrated = measured_workload(WORKLOAD, PLAN, profile)
    after = workload.predict([PLAN])[0]
    assert after.step_time_s == pytest.approx(profile.step_time_s)
    assert recalibrated is not None
    assert profile.diagnosis.shares["compute"] + profile.diagnosis.shares["memory"] < 0.22
    assert after.breakdown_s["compute"] / after.step_time_s < 0.4
    assert after.breakdown_s["host_and_other"] > after.breakdown_s["compute"]


@pytest.mark.skipif(not TRACES.is_dir(), reason="needs the recorded traces of ../shared")
def test_traces_of_another_device_come_first_and_calibrate_nothing() -> None:
    parts = {"cluster": {"device": "h100-sxm-80gb", "num_devices": 8}}
    scenario = parse_scenario({**GPT, **parts, "traces": str(TRACES / "megatron_tp8")})
    with_traces, without = optimize(scenario), optimize(scenario.model_copy(update={"traces": None}))
    assert with_traces.diagnosis.cause == "trace_mismatch"
    assert "A100" in with_traces.diagnosis.evidence[0].says
    assert with_traces.diagnosis.recalibrated is None
    assert with_traces.diagnosis.bottleneck == without.diagnosis.bottleneck
    assert [proposal.plan for proposal in with_traces.proposals] == [
        proposal.plan for proposal in without.proposals
    ]
    assert with_traces.baseline == without.baseline
