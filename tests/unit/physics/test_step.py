"""The whole step: parts that add up, the pipeline, what hides communication, and what hardware may change."""

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.physics.scenes import (
    MODELS,
    Scene,
    number,
    scene,
)
from tools.physics.memory import Memory
from tools.physics.stage import not_hidden
from tools.physics.step import StepTerms
from tools.physics.terms import MEMORY_PARTS, STEP_TERMS

SECONDS = st.floats(0.0, 1e3)


def parts(s: Scene) -> dict[str, float]:
    breakdown = s.costs().breakdown
    return {f.name: float(getattr(breakdown, f.name)[0]) for f in fields(StepTerms)}


def step_s(s: Scene) -> float:
    return float(s.costs().step_time_s[0])


def test_one_device_communicates_nothing_and_has_no_bubble() -> None:
    found = parts(scene("llama-3.1-8b", devices=1))
    quiet = {name for name, value in found.items() if value == 0.0}
    silent = {name for name in found if name.endswith("_comm_exposed")}
    assert silent | {"pipeline_bubble", "recompute"} == quiet


def test_the_stage_with_the_head_sets_the_pace_where_stages_are_even() -> None:
    """The head's arithmetic is on the last stage of two, so it counts whole and not half."""
    words = {"devices": 2, "dp": 1, "dp_shard": 1, "batch": 64}
    both = parts(scene("llama-3.1-8b", pp=2, **words))["compute"]
    alone = scene("llama-3.1-8b", devices=1, batch=64)
    headless = replace(alone, x=replace(alone.x, vocab=number(0.0)))
    head = parts(alone)["compute"] - parts(headless)["compute"]
    expected = parts(headless)["compute"] / 2 + head
    assert both == pytest.approx(expected, rel=1e-3)


def test_an_inner_stage_sets_the_pace_where_the_last_has_fewer_layers() -> None:
    """Of ten layers on four stages, inner ones have three and the last one; here its head is free."""
    words = {"devices": 4, "dp": 1, "dp_shard": 1, "batch": 64, "pp": 4, "framework": "other", "vpp": 1}
    ten, twelve = (scene(MODELS["llama-3.1-8b"] | {"num_hidden_layers": n}, **words) for n in (10, 12))
    headless = [replace(s, x=replace(s.x, vocab=number(0.0))) for s in (ten, twelve)]
    assert parts(headless[0])["compute"] == pytest.approx(parts(headless[1])["compute"], rel=2e-3)
    assert parts(headless[0])["pipeline_bubble"] < parts(headless[1])["pipeline_bubble"]


@given(sent=SECONDS, window=SECONDS, more=SECONDS, cost=st.floats(0.0, 1.0))
def test_hiding_obeys_the_clock(sent: float, window: float, more: float, cost: float) -> None:
    def left(sent_s: float, window_s: float) -> float:
        return float(not_hidden(number(sent_s), number(window_s), number(cost)))

    tiny = 1e-9
    assert max(0.0, sent - window) - tiny <= left(sent, window) <= sent + tiny
    assert left(sent + more, window) >= left(sent, window) - tiny
    assert left(sent, window + more) <= left(sent, window) + tiny


LINKS = ("scale_up_bandwidth", "scale_out_bandwidth")
ALL_RATES = (*LINKS, "memory_bandwidth", "gemm_peak", "half_peak")
PLANS = [
    {"model": "llama-3.1-70b", "tp": 4, "pp": 2},
    {"model": "llama-3.1-70b", "tp": 8, "zero_stage": 3, "framework": "torchtitan"},
    {"model": "llama-3.1-8b", "zero_stage": 3, "framework": "torchtitan"},
    {"model": "mixtral-8x7b", "ep": 8, "tp": 2, "pp": 2},
    {"model": "deepseek-v3", "ep": 64, "precision": "fp8"},
    {"model": "llama-3.1-8b", "device": "tpu-v5p", "framework": "maxtext", "zero_stage": 3},
    {"model": "llama-3.1-8b", "device": "tpu-v5e", "framework": "maxtext", "zero_stage": 3, "dp_shard": 8},
    {"model": "llama-3.1-8b", "cp": 8, "seq_len": 131072},
    {"model": "llama-3.1-8b", "zero_stage": 3, "framework": "torchtitan", "dp_shard": 8, "batch": 64},
    {"model": "llama-3.1-8b", "zero_stage": 3, "framework": "torchtitan", "seq_len": 256, "dp_shard": 32},
]


@pytest.mark.parametrize("plan", PLANS)
@given(field=st.sampled_from(ALL_RATES), faster=st.floats(1.0, 100.0))
def test_a_faster_device_or_link_never_makes_the_step_slower(
    plan: dict[str, Any], field: str, faster: float
) -> None:
    s = scene(**plan)
    quick = replace(s, x=replace(s.x, **{field: getattr(s.x, field) * faster}))
    assert step_s(quick) <= step_s(s) * (1 + 1e-12)


def test_every_term_and_part_has_a_name_in_the_order_of_the_model() -> None:
    assert list(STEP_TERMS) == [f.name for f in fields(StepTerms)]
    assert list(MEMORY_PARTS) == [f.name for f in fields(Memory)]
