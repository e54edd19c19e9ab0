"""A scenario that is right, for tests that change one thing in it."""

import copy
from typing import Any

import pytest

from tools.errors import InputError
from tools.scenario import Plan, Scenario, parse_scenario

Changes = dict[str, Any]
ABSENT = object()
EXAMPLE: dict[str, Any] = {
    "model": {
        "name": "Llama-3.1-70B", "num_hidden_layers": 80, "hidden_size": 8192, "intermediate_size": 28672,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256,
        "gated_mlp": True, "tie_word_embeddings": False,
    },
    "cluster": {"device": "h100-sxm-80gb", "num_devices": 64, "devices_per_node": 8},
    "training": {
        "seq_len": 8192, "global_batch_size": 128, "precision": "bf16", "framework": "megatron-core",
        "flash_attention": True,
    },
    "plan": {
        "tp": 4, "pp": 2, "vpp": 5, "cp": 1, "ep": 1, "dp": 8, "dp_shard": 8, "zero_stage": 1,
        "micro_batch_size": 1, "sequence_parallel": True, "recompute": "none",
    },
}  # fmt: skip


def example(changes: Changes | None = None) -> dict[str, Any]:
    """With these fields changed, each named by its path (`plan.tp`), or left out if ABSENT."""
    scenario = copy.deepcopy(EXAMPLE)
    for path, value in (changes or {}).items():
        *parents, name = path.split(".")
        part = scenario
        for parent in parents:
            part = part.setdefault(parent, {})
        part[name] = value
        if value is ABSENT:
            del part[name]
    return scenario


def parsed(changes: Changes | None = None) -> Scenario:
    return parse_scenario(example(changes))


def parsed_plan(changes: Changes | None = None) -> Plan:
    plan = parsed(changes).plan
    assert plan is not None
    return plan


def refusal(changes: Changes | None = None) -> InputError:
    """The error, which is one line whatever was stated."""
    with pytest.raises(InputError) as caught:
        parsed(changes)
    assert "\n" not in str(caught.value)
    return caught.value
