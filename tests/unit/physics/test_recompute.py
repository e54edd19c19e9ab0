"""Recomputation that the plan does not state is chosen by memory: none, else selective, else full."""

from dataclasses import replace

import pytest

from tests.unit.physics.scenes import Scene, number, scene
from tools.model.predict import resolve_recompute
from tools.physics.memory import memory_bytes

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
    layers = float(resolved.recompute_layers)
    assert float(resolved.recompute) == CODES["full"]
    assert 1 < layers < 20
    assert float(memory_bytes(resolved, s.settings).total) <= memory
    fewer = replace(resolved, recompute_layers=number(layers - 1))
    assert float(memory_bytes(fewer, s.settings).total) > memory
