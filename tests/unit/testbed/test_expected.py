"""Seconds of the cost model read as bytes: on links of one byte a second they are the textbook's bytes."""

from typing import Any

import pytest

from testbed.expected import expected
from tools.scenario import parse_scenario

MODEL = {
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 256,
}
LAYER = 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128 + 2 * 64
PARAMETERS = 4 * LAYER + 2 * 256 * 64
HIDDEN_BYTES = 32 * 64 * 4


def wire(ranks: int, device: str = "h100-sxm-80gb", **plan: int | bool | str) -> dict[str, float]:
    given: dict[str, Any] = {
        "model": MODEL,
        "cluster": {"device": device, "num_devices": ranks, "devices_per_node": min(ranks, 2)},
        "training": {
            "seq_len": 32,
            "global_batch_size": 8,
            "precision": "fp32",
            "framework": "torch-fsdp2",
        },
        "plan": {
            "tp": 1,
            "pp": 1,
            "cp": 1,
            "ep": 1,
            "dp": 1,
            "dp_shard": 1,
            "zero_stage": 0,
            "micro_batch_size": 1,
            "recompute": "none",
            **plan,
        },
    }
    return expected(parse_scenario(given)).wire_bytes


def test_ddp_sends_an_all_reduce_of_all_gradients() -> None:
    assert wire(8, dp=8)["dp"] == pytest.approx(2 * 7 / 8 * PARAMETERS * 4)


def test_fsdp_gathers_twice_and_scatters_for_every_micro_batch() -> None:
    assert wire(4, dp=4, dp_shard=4, zero_stage=3)["dp"] == pytest.approx(2 * 3 * 3 / 4 * PARAMETERS * 4)


def test_tensor_ranks_reduce_four_hidden_states_a_layer_and_one_for_the_head() -> None:
    assert wire(2, tp=2)["tp"] == pytest.approx(8 * (4 * 4 + 1) * 2 * 1 / 2 * HIDDEN_BYTES)


def test_inner_stages_send_an_activation_and_a_gradient_for_every_micro_batch() -> None:
    assert wire(4, pp=4)["pp"] == pytest.approx(8 * 2 * HIDDEN_BYTES)


def test_messages_are_counted_alike_whatever_library_sends_them() -> None:
    """gloo's dearer reduce-scatter is time in a prediction; here a program's messages are compared."""
    ours = wire(4, "cpu", dp=4, dp_shard=4, zero_stage=3)
    assert ours == pytest.approx(wire(4, dp=4, dp_shard=4, zero_stage=3))


def test_what_a_plan_does_not_use_sends_nothing() -> None:
    assert wire(1) == {"tp": 0.0, "cp": 0.0, "ep": 0.0, "dp": 0.0, "pp": 0.0}
