"""Whatever legal plan, model, device and framework: finite, not negative, adding up, in the contract's shape,
and contradicting nothing that must hold of every prediction."""

import math
from functools import cache
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.physics.scenes import MODELS
from tools.model.checks import contradictions
from tools.model.predict import Prediction, predict
from tools.scenario import RECOMPUTES, Plan, PlanColumns, Scenario, parse_scenario
from tools.scenario.columns import MODULES
from tools.scenario.frameworks import framework_names
from tools.scenario.spec import MoeDispatcher, TrainingSpec
from tools.search.constraints import Constraints
from tools.search.space import PlanSpace

DEVICES = (
    *(("h100-sxm-80gb", "bf16"), ("h100-sxm-80gb", "fp8"), ("a100-sxm-80gb", "fp16"), ("gb200", "mxfp8")),
    *(("b200", "nvfp4"), ("tpu-v5p", "bf16"), ("tpu-v6e", "int8"), ("mi300x", "bf16"), ("cpu", "fp32")),
)
TOPOLOGIES: tuple[dict[str, Any], ...] = (
    {},
    {"devices_per_node": 4},
    {"devices_per_node": 1},
    {"topology": {"nvlink_domain_size": 16, "oversubscription": 2.0}},
    {"topology": {"torus_dimensions": [4, 4, 1]}},
)
PREDICTING = {"n_group": 8, "topk_group": 2, "num_nextn_predict_layers": 2}
ALL_MODELS = MODELS | {"deepseek-v3-mtp": MODELS["deepseek-v3"] | PREDICTING}
ADAPTERS = ({"rank": 16}, {"rank": 64, "targets": ["attention"]}, {"rank": 16, "weight_bits": 4})
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "software_date": st.sampled_from(("2022-06", "2023-03", "2026-04", "2026-06")),
        "moe_dispatcher": st.sampled_from(get_args(MoeDispatcher)),
        "overlap_moe_communication": st.booleans(),
        "overlap_tensor_communication": st.booleans(),
        "overlap_gradient_communication": st.booleans(),
        "cuda_graph": st.sampled_from(["none", "scoped", "full"]),
        "capacity_factor": st.sampled_from((1.0, 1.25)),
        "optimizer_offload": st.booleans(),
        "lora": st.sampled_from(ADAPTERS),
    },
)
RECOMPUTED = st.one_of(
    st.fixed_dictionaries({"recompute": st.sampled_from((*RECOMPUTES, None))}),
    st.builds(lambda n: {"recompute": "full", "recompute_layers": n}, st.integers(1, 40)),
    st.builds(
        lambda names: {"recompute": "selective", "recompute_modules": tuple(sorted(names))},
        st.sets(st.sampled_from(MODULES), min_size=1),
    ),
)
WORKLOADS = st.fixed_dictionaries(
    {
        "model": st.sampled_from(sorted(ALL_MODELS)),
        "device": st.sampled_from(DEVICES),
        "framework": st.sampled_from(framework_names()),
        "topology": st.sampled_from(range(len(TOPOLOGIES))),
        "seq_len": st.sampled_from((256, 2048, 8192, 131072)),
        "flash": st.booleans(),
    }
)


@cache
def workload(
    model: str, device: tuple[str, str], framework: str, topology: int, seq_len: int, flash: bool
) -> Scenario:
    """On 16 devices; a precision that only some devices have comes with the device."""
    training = {"seq_len": seq_len, "global_batch_size": 48, "precision": device[1], "framework": framework}
    return parse_scenario(
        {
            "model": ALL_MODELS[model],
            "cluster": {"device": device[0], "num_devices": 16, **TOPOLOGIES[topology]},
            "training": training | {"flash_attention": flash},
        },
        need_plan=False,
    )


@st.composite
def planned(draw: st.DrawFn) -> Scenario | None:
    """A row of the search's own table of legal plans, field by field so that every value is as likely."""
    scenario, choose = workload(**draw(WORKLOADS)), np.random.default_rng(draw(st.integers(0, 2**32)))
    space = PlanSpace(scenario, Constraints(space="all"))
    table: PlanColumns = space.degrees()
    for grow in (space.with_experts, space.with_sharding, space.with_pipeline, space.with_micro_batch):
        table = grow(table.take(choose.integers(0, table.rows, min(table.rows, 1))))
    if not table.rows:
        return None
    row = table.with_columns(recompute=np.zeros(table.rows, dtype=np.int64)).plan(
        int(choose.integers(0, table.rows))
    )
    plan = Plan.model_validate(row.model_dump() | draw(RECOMPUTED))
    training = TrainingSpec.model_validate(scenario.training.model_dump() | draw(OPTIONS))
    return scenario.model_copy(update={"plan": plan, "training": training})


@settings(max_examples=400)
@given(scenario=planned())
def test_every_legal_plan_gets_a_sound_prediction(scenario: Scenario | None) -> None:
    if scenario is None:
        return
    prediction = predict([scenario])[0]
    assert contradictions(scenario, prediction) == []
    figures = [v for v in prediction.model_dump().values() if isinstance(v, float)]
    figures += [*prediction.breakdown_s.values(), *prediction.memory_gib.values()]
    assert all(math.isfinite(value) and value >= 0.0 for value in figures)
    assert 0 < prediction.step_time_low_s < prediction.step_time_s < prediction.step_time_high_s
    tokens = scenario.training.global_batch_size * scenario.training.seq_len
    rate = tokens / prediction.step_time_s / scenario.cluster.num_devices
    assert prediction.tokens_per_s_per_device == pytest.approx(rate, rel=1e-12)
    assert Prediction.model_validate(prediction.model_dump(), strict=True) == prediction
