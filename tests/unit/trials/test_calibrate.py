"""What measured plans make of the cost model: constants recovered, no trial made worse, intervals narrowed;
and a trial's profile as terms of a step."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tools.model.calibration import Calibration, calibrated_to, shipped_calibration
from tools.model.predict import Prediction, predict
from tools.model.runs import Measured, Run
from tools.model.update import calibrate as learn
from tools.physics.encode import encode
from tools.scenario import Plan, parse_scenario

MODEL = {
    "num_hidden_layers": 6, "hidden_size": 256, "intermediate_size": 768, "vocab_size": 4096,
    "num_attention_heads": 8, "num_key_value_heads": 4,
}  # fmt: skip
TRAINING = {"seq_len": 64, "global_batch_size": 8, "precision": "fp32", "framework": "torch-fsdp2"}
CLUSTER = {"device": "cpu", "num_devices": 4, "devices_per_node": 2}
CLUSTER_LINKS = {"overrides": {"inter_node_gbps_per_device": 0.1}}
ONES = dict.fromkeys(("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "dp_shard"), 1)
SCENARIO = parse_scenario(
    {"model": MODEL, "cluster": CLUSTER | CLUSTER_LINKS, "training": TRAINING}, need_plan=False
)
TRUTH = {"gemm_efficiency": 0.45, "slow_link_efficiency": 0.7, "micro_batch_overhead_s": 6e-3}
"""Of a made-up cluster, away from the shipped constants."""


def plan(**degrees: int) -> Plan:
    rest = {"zero_stage": 0, "sequence_parallel": False, "recompute": "none", "schedule": "1f1b"}
    return Plan.model_validate({**ONES, "micro_batch_size": 2, **rest, **degrees})


PLANS = [
    plan(dp=4, dp_shard=4, zero_stage=3),
    plan(dp=4),
    plan(pp=2, dp=2),
    plan(tp=2, dp=2, micro_batch_size=4),
    plan(pp=4, micro_batch_size=1),
    plan(cp=2, dp=2),
    plan(dp=4, dp_shard=2, zero_stage=3),
    plan(tp=2, pp=2, micro_batch_size=2),
]
HELD_OUT = [plan(pp=2, cp=2), plan(tp=4, micro_batch_size=4), plan(pp=2, dp=2, micro_batch_size=1)]


def predictions(plans: list[Plan], calibration: Calibration | None = None) -> list[Prediction]:
    return predict([SCENARIO.model_copy(update={"plan": plan}) for plan in plans], calibration)


def seconds(plans: list[Plan], calibration: Calibration | None = None) -> list[float]:
    return [p.step_time_s for p in predictions(plans, calibration)]


def truth() -> Calibration:
    _, keys = encode([SCENARIO.model_copy(update={"plan": PLANS[0]})])
    return calibrated_to(shipped_calibration(), keys, TRUTH)


def trial(plan: Plan, step_s: float, noise: float = 0.01, terms: dict[str, float] | None = None) -> Run:
    shown = {name: value for name, value in (terms or {}).items() if value > 0}
    what = Measured(step_time_s=step_s, noise=noise, terms_s=shown)
    return Run(scenario=SCENARIO.model_copy(update={"plan": plan}), measured=what, source="trial")


def calibrate(trials: list[Run], base: Calibration | None = None) -> Calibration:
    return learn((), base, own=trials).calibration


def measured(plans: list[Plan], *, with_terms: bool = False) -> list[Run]:
    return [
        trial(plan, p.step_time_s, 0.01, p.breakdown_s if with_terms else None)
        for plan, p in zip(plans, predictions(plans, truth()), strict=True)
    ]


def errors(plans: list[Plan], calibration: Calibration | None) -> list[float]:
    pairs = zip(seconds(plans, calibration), seconds(plans, truth()), strict=True)
    return [abs(math.log(predicted / true)) for predicted, true in pairs]


def test_a_cluster_with_other_constants_is_recovered() -> None:
    learned = calibrate(measured(PLANS))
    assert max(errors(PLANS, learned)) < 0.03
    assert max(errors(HELD_OUT, learned)) < 0.1
    assert np.mean(errors(HELD_OUT, learned)) < np.mean(errors(HELD_OUT, None)) / 3


def test_a_profile_brings_the_terms_that_were_off_where_they_belong() -> None:
    learned = calibrate(measured(PLANS[:1], with_terms=True))
    before, after, true = (predictions(PLANS[:1], c)[0].breakdown_s for c in (None, learned, truth()))
    for term in ("compute", "dp_comm_exposed"):
        assert after[term] == pytest.approx(true[term], rel=0.12)
    assert before["compute"] != pytest.approx(true["compute"], rel=0.3)


TERMS = st.sampled_from(["compute", "dp_comm_exposed", "pipeline", "host_and_other", "optimizer"])


@settings(max_examples=25)
@example(  # one data rank has no traffic that could be exposed
    plan=PLANS[4],
    factor=2.0,
    noise=0.0,
    terms={"compute": 1.0, "host_and_other": 3.0, "dp_comm_exposed": 0.5, "pipeline": 0.5},
)
@example(plan=PLANS[7], factor=2.5, noise=0.0, terms={"dp_comm_exposed": 2.0, "compute": 0.0625})
@given(
    plan=st.sampled_from(PLANS),
    factor=st.floats(0.3, 3.0),
    noise=st.floats(0.0, 0.3),
    terms=st.none() | st.dictionaries(TERMS, st.floats(0.0, 5.0)),
)
def test_one_trial_never_makes_the_prediction_of_its_plan_worse(
    plan: Plan, factor: float, noise: float, terms: dict[str, float] | None
) -> None:
    before = seconds([plan])[0]
    learned = calibrate([trial(plan, before * factor, noise, terms)])
    after = seconds([plan], learned)[0]
    assert abs(math.log(after / (before * factor))) <= abs(math.log(factor)) + 1e-6
