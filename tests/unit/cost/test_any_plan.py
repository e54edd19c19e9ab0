"""Whatever legal plan, model and device: finite, not negative, adding up, in the contract's shape."""

import math
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.unit.cost.scenes import raw_scenario
from tools.cost.predict import Prediction, predict
from tools.errors import InputError
from tools.scenario import Scenario, parse_scenario

PARTS = {
    "compute",
    "recompute",
    "memory_bound_ops",
    "tp_comm_exposed",
    "cp_comm_exposed",
    "ep_comm_exposed",
    "dp_comm_exposed",
    "pp_comm_exposed",
    "pipeline_bubble",
    "optimizer",
    "host_and_other",
}
MEMORY = {"parameters", "gradients", "optimizer", "activations", "buffers", "runtime"}
FRAMEWORKS = ["megatron-core", "torchtitan", "torch-fsdp2", "maxtext", "deepspeed", "nanotron", "other"]
DEVICES = ["h100-sxm-80gb", "a100-sxm-40gb", "gb300", "mi355x", "tpu-v5e", "tpu7x", "trainium1", "cpu"]
MODELS = ["llama-3.1-8b", "llama-3.1-70b", "mixtral-8x7b", "deepseek-v3", "gpt-oss-120b", "gpt-3-175b"]
DEGREE = st.sampled_from([1, 1, 2, 4, 8])


@st.composite
def words(draw: st.DrawFn) -> dict[str, Any]:
    degrees = {name: draw(DEGREE) for name in ("tp", "pp", "cp", "ep")}
    dp = draw(st.sampled_from([1, 2, 8, 64, 512]))
    micro = draw(st.sampled_from([1, 2, 4]))
    return degrees | {
        "model": draw(st.sampled_from(MODELS)),
        "device": draw(st.sampled_from(DEVICES)),
        "framework": draw(st.sampled_from(FRAMEWORKS)),
        "precision": draw(st.sampled_from(["bf16", "bf16", "fp32", "fp8", "mxfp8", "nvfp4"])),
        "seq_len": draw(st.sampled_from([256, 4096, 131072])),
        "flash": draw(st.booleans()),
        "devices": degrees["tp"] * degrees["pp"] * degrees["cp"] * dp,
        "batch": dp * micro * draw(st.sampled_from([1, 8, 64])),
        "micro_batch_size": micro,
        "zero_stage": draw(st.sampled_from([0, 1, 2, 3])),
        "dp_shard": draw(st.sampled_from([1, dp, dp * degrees["cp"]])),
        "vpp": draw(st.sampled_from([None, 1, 2])),
        "recompute": draw(st.sampled_from([None, "none", "selective", "full"])),
        "sequence_parallel": draw(st.sampled_from([None, True, False])),
    }


def legal(chosen: dict[str, Any]) -> Scenario:
    try:
        return parse_scenario(raw_scenario(**chosen))
    except InputError:
        assume(False)
        raise


@settings(max_examples=300)
@given(chosen=words())
def test_every_legal_plan_gets_a_sound_prediction(chosen: dict[str, Any]) -> None:
    prediction = predict([legal(chosen)])[0]
    assert set(prediction.breakdown_s) == PARTS
    assert set(prediction.memory_gib) == MEMORY
    figures = [v for v in prediction.model_dump().values() if isinstance(v, float)]
    figures += [*prediction.breakdown_s.values(), *prediction.memory_gib.values()]
    assert all(math.isfinite(value) and value >= 0.0 for value in figures)
    assert sum(prediction.breakdown_s.values()) == pytest.approx(prediction.step_time_s, rel=1e-9)
    assert sum(prediction.memory_gib.values()) == pytest.approx(prediction.peak_memory_gib, rel=1e-9)
    assert 0 < prediction.step_time_low_s < prediction.step_time_s < prediction.step_time_high_s
    assert 0 < prediction.mfu < 1
    assert Prediction.model_validate(prediction.model_dump(), strict=True) == prediction


@settings(max_examples=100)
@given(chosen=words())
def test_throughput_is_tokens_over_time_and_devices(chosen: dict[str, Any]) -> None:
    scenario = legal(chosen)
    prediction = predict([scenario])[0]
    tokens = scenario.training.global_batch_size * scenario.training.seq_len
    rate = tokens / prediction.step_time_s / scenario.cluster.num_devices
    assert prediction.tokens_per_s_per_device == pytest.approx(rate, rel=1e-12)


@settings(max_examples=100)
@given(chosen=words(), factor=st.sampled_from([2, 4]))
def test_more_global_batch_never_takes_less_time(chosen: dict[str, Any], factor: int) -> None:
    small = legal(chosen)
    large = legal(chosen | {"batch": chosen["batch"] * factor})
    one, other = predict([small, large])
    first, second = one.step_time_s, other.step_time_s
    assert second > first
