"""Recomputation that the plan does not state is chosen by memory: none, else selective, else full."""

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.cost.scenes import Scene, number, scene
from tools.cost.memory import memory_bytes
from tools.cost.predict import evaluate, resolve_recompute

CODES = {"none": 0.0, "selective": 1.0, "full": 2.0}


def peaks(s: Scene) -> list[float]:
    return [float(memory_bytes(replace(s.x, recompute=number(code)), s.settings).total) for code in range(3)]


def chosen(s: Scene, memory: float) -> float:
    return float(resolve_recompute(replace(s.x, memory_bytes=number(memory)), s.settings).recompute)


def test_the_least_recomputation_that_fits_is_chosen() -> None:
    s = scene(tp=8, zero_stage=3, framework="torchtitan", recompute=None)
    none, selective, full = peaks(s)
    assert chosen(s, none) == CODES["none"]
    assert chosen(s, none - 1.0) == CODES["selective"]
    assert chosen(s, selective - 1.0) == CODES["full"]
    assert chosen(s, full - 1.0) == CODES["full"]


@pytest.mark.parametrize("name", CODES)
def test_what_the_plan_states_is_kept_even_where_it_does_not_fit(name: str) -> None:
    s = scene(tp=8, recompute=name)
    assert chosen(s, 1.0) == CODES[name]


def test_rows_are_resolved_apart() -> None:
    s = scene(tp=8, zero_stage=3, framework="torchtitan", recompute=None)
    none, selective, _ = peaks(s)
    memories = np.array([none, none - 1.0, selective - 1.0, 1.0])
    stated = np.array([-1.0, -1.0, -1.0, 0.0])
    x = replace(s.x, memory_bytes=memories, recompute=stated, tp=np.full(4, 8.0))
    assert evaluate(x, s.c, s.settings).recompute.tolist() == [0.0, 1.0, 2.0, 0.0]


def test_the_chosen_recomputation_costs_what_it_would_cost_if_stated() -> None:
    left_open, stated = (scene("llama-3.1-8b", devices=8, recompute=r).costs() for r in (None, "none"))
    assert left_open.step_time_s[0] == stated.step_time_s[0]
    assert left_open.memory_bytes[0] == stated.memory_bytes[0]


@pytest.mark.parametrize("model", ["llama-3.1-70b", "mixtral-8x7b", "deepseek-v3"])
@pytest.mark.parametrize("framework", ["megatron-core", "torchtitan", "other"])
def test_recomputing_more_takes_longer(model: str, framework: str) -> None:
    stage = 1 if framework == "megatron-core" else 3  # Megatron has no ZeRO 3 with a pipeline
    words = {"tp": 4, "pp": 2, "zero_stage": stage, "framework": framework, "vpp": 1}
    times = [
        float(scene(model, recompute=r, **words).costs().step_time_s[0])
        for r in ("none", "selective", "full")
    ]
    assert times[0] < times[1] < times[2]


def test_full_recomputation_repeats_the_forward_pass() -> None:
    """A third of the layers' arithmetic: forward again, beside forward and backward of twice its cost."""
    full = scene(tp=1, devices=8, recompute="full").costs().breakdown
    assert 0.3 < float(full.recompute[0]) / float(full.compute[0]) < 0.36


def test_recomputation_that_stops_early_leaves_out_the_last_product_of_a_layer() -> None:
    """Of a gated MLP of 3.5 times the width, about a fifth of the layer."""
    words = {"tp": 1, "devices": 8, "zero_stage": 3, "recompute": "full"}
    whole, early = (scene(framework=f, **words).costs().breakdown for f in ("megatron-core", "torch-fsdp"))
    ratio = float(early.recompute[0] / early.compute[0]) / float(whole.recompute[0] / whole.compute[0])
    assert 0.7 < ratio < 0.85


def test_half_of_the_layers_recomputed_costs_half_the_time() -> None:
    whole, half = (
        float(scene(tp=4, pp=4, recompute="full", **more).costs().breakdown.recompute[0])
        for more in ({}, {"recompute_layers": 10})
    )
    assert half == pytest.approx(whole / 2)


def test_an_open_plan_recomputes_as_few_layers_as_fit() -> None:
    s = scene(tp=8, pp=4, recompute=None)
    none, _, full = peaks(s)
    memory = none - 0.3 * (none - full)
    resolved = resolve_recompute(replace(s.x, memory_bytes=number(memory)), s.settings)
    layers = float(resolved.recomputed_layers)
    assert float(resolved.recompute) == CODES["full"]
    assert 1 < layers < 20
    assert float(memory_bytes(resolved, s.settings).total) <= memory
    fewer = replace(resolved, recomputed_layers=number(layers - 1))
    assert float(memory_bytes(fewer, s.settings).total) > memory


def test_more_named_modules_take_longer_to_repeat() -> None:
    times = [
        float(scene("mixtral-8x7b", ep=8, recompute="selective", recompute_modules=m).costs().step_time_s[0])
        for m in (["layernorm"], ["layernorm", "moe_act"], ["layernorm", "moe"])
    ]
    assert times[0] < times[1] < times[2]
