"""The whole step: parts that add up, the pipeline, what hides communication, and what hardware may change."""

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.cost.scenes import MODELS, Scene, number, scene
from tools.cost.memory import Memory
from tools.cost.sizes import model_flops_per_token
from tools.cost.stage import not_hidden
from tools.cost.step import Breakdown
from tools.cost.terms import MEMORY_PARTS, STEP_TERMS

SECONDS = st.floats(0.0, 1e3)


def parts(s: Scene) -> dict[str, float]:
    breakdown = s.costs().breakdown
    return {f.name: float(getattr(breakdown, f.name)[0]) for f in fields(Breakdown)}


def step_s(s: Scene) -> float:
    return float(s.costs().step_time_s[0])


@pytest.mark.parametrize("model", ["llama-3.1-70b", "deepseek-v3", "mixtral-8x7b"])
def test_the_parts_add_up_to_the_step(model: str) -> None:
    s = scene(model, tp=2, pp=4, cp=2)
    assert sum(parts(s).values()) == pytest.approx(step_s(s), rel=1e-12)


def test_one_device_communicates_nothing_and_has_no_bubble() -> None:
    found = parts(scene("llama-3.1-8b", devices=1))
    quiet = {name for name, value in found.items() if value == 0.0}
    silent = {name for name in found if name.endswith("_comm_exposed")}
    assert silent | {"pipeline_bubble", "recompute"} == quiet


@pytest.mark.parametrize(
    ("plan", "part"),
    [
        ({"tp": 8}, "tp_comm_exposed"),
        ({"cp": 2}, "cp_comm_exposed"),
        ({"pp": 2}, "pp_comm_exposed"),
        ({"ep": 8}, "ep_comm_exposed"),
        ({}, "dp_comm_exposed"),
    ],
)
def test_each_degree_brings_its_own_communication(plan: dict[str, int], part: str) -> None:
    without = scene("mixtral-8x7b", devices=1)
    assert parts(without)[part] == 0.0
    assert parts(scene("mixtral-8x7b", **plan))[part] > 0.0


@pytest.mark.parametrize("pp", [2, 4, 8])
@pytest.mark.parametrize("vpp", [1, 2, 5])
def test_the_bubble_of_even_stages_is_narayanan_s_share(pp: int, vpp: int) -> None:
    """(pp - 1) / (vpp * m) of the time the micro-batches take (arXiv 2104.04473, section 2.2). A vocabulary
    of one word leaves the last stage no heavier than the others."""
    s = scene(tp=2, pp=pp, vpp=vpp, batch=512)
    s = replace(s, x=replace(s.x, vocab=number(0.0)), c=replace(s.c, scale_jitter=number(0.0)))
    found = parts(s)
    once_a_step = ("dp_comm_exposed", "pipeline_bubble", "optimizer")
    work = sum(value for name, value in found.items() if name not in once_a_step)
    work -= float(s.c.step_overhead_s)
    m = float(s.x.micro_batches)
    assert found["pipeline_bubble"] / work == pytest.approx((pp - 1) / (vpp * m), rel=2e-3)


def test_a_zero_bubble_schedule_leaves_a_third_of_the_bubble() -> None:
    words = {"pp": 4, "vpp": 2, "framework": "torch-fsdp2", "zero_stage": 2}
    plain, filled = (parts(scene(schedule=name, **words)) for name in ("interleaved", "zero_bubble"))
    assert filled["pipeline_bubble"] == pytest.approx(plain["pipeline_bubble"] / 3, rel=1e-9)


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


def test_the_optimizer_s_time_is_divided_by_sharding() -> None:
    whole, sharded = (parts(scene("llama-3.1-8b", devices=8, zero_stage=z)) for z in (0, 1))
    assert sharded["optimizer"] == pytest.approx(whole["optimizer"] / 8, rel=1e-9)


def test_accumulating_twice_the_micro_batches_doubles_the_compute_and_not_the_optimizer() -> None:
    once, twice = (parts(scene(tp=8, batch=b)) for b in (128, 256))
    assert twice["compute"] == pytest.approx(2 * once["compute"], rel=1e-9)
    assert twice["optimizer"] == once["optimizer"]
    assert twice["dp_comm_exposed"] == pytest.approx(once["dp_comm_exposed"], rel=1e-9)


def test_zero_3_sends_in_every_micro_batch() -> None:
    words = {"tp": 1, "zero_stage": 3, "framework": "torch-fsdp2"}
    once, twice = (parts(scene(batch=b, **words)) for b in (64, 128))
    assert twice["dp_comm_exposed"] == pytest.approx(2 * once["dp_comm_exposed"], rel=1e-6)


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


@pytest.mark.parametrize("field", ["scale_up_latency", "scale_out_latency", "launch_s"])
@pytest.mark.parametrize("plan", PLANS)
def test_longer_latencies_never_make_the_step_faster(plan: dict[str, Any], field: str) -> None:
    s = scene(**plan)
    late = replace(s, x=replace(s.x, **{field: getattr(s.x, field) * 10 + 1e-6}))
    assert step_s(late) >= step_s(s)


def test_fp8_makes_the_step_faster_but_not_twice_as_fast() -> None:
    low, half = (step_s(scene(tp=4, pp=2, precision=p)) for p in ("fp8", "bf16"))
    assert half / 2 < low < half


def test_a_step_never_beats_the_peak() -> None:
    for plan in PLANS:
        s = scene(**plan)
        ideal = float(model_flops_per_token(s.x) * s.x.batch * s.x.seq / s.x.devices / s.x.gemm_peak)
        assert step_s(s) > ideal


def test_every_term_and_part_has_a_name_in_the_order_of_the_model() -> None:
    assert list(STEP_TERMS) == [f.name for f in fields(Breakdown)]
    assert list(MEMORY_PARTS) == [f.name for f in fields(Memory)]
