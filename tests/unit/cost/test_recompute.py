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
    s = scene(tp=8, recompute=None)
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
    s = scene(tp=8, recompute=None)
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
    words = {"tp": 4, "pp": 2, "zero_stage": 3, "framework": framework, "vpp": 1}
    times = [
        float(scene(model, recompute=r, **words).costs().step_time_s[0])
        for r in ("none", "selective", "full")
    ]
    assert times[0] < times[1] < times[2]


def test_full_recomputation_repeats_the_forward_pass() -> None:
    """A third more of the layers' arithmetic: forward, forward again, and backward of twice its cost."""
    none, full = (scene(tp=1, devices=8, recompute=r).costs().breakdown for r in ("none", "full"))
    assert 1.25 < float(full.compute[0]) / float(none.compute[0]) < 1.34
