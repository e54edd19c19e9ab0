"""Every setting that says what was run has its price, in the direction that it has outside."""

import pytest

from tests.unit.physics.scenes import scene
from tools.physics.arithmetic import ONE, number
from tools.physics.collectives import place
from tools.physics.step import step_terms

Words = dict[str, object]
HOPPER_MOE: Words = {"model": "gpt-oss-120b", "devices": 32, "ep": 32, "batch": 64}
DENSE: Words = {"model": "llama-3.1-8b", "devices": 64, "batch": 256}
TITAN = {**DENSE, "framework": "torchtitan", "zero_stage": 3}
BLACKWELL: Words = {"model": "llama-3.1-70b", "device": "b200", "precision": "nvfp4", "tp": 8}


def seconds(**words: object) -> float:
    s = scene(**words)
    return float(step_terms(s.x, s.c).total)


@pytest.mark.parametrize(
    ("base", "slower", "faster"),
    [
        (HOPPER_MOE, {"cuda_graph": "none"}, {"cuda_graph": "scoped"}),
        (HOPPER_MOE, {"cuda_graph": "scoped"}, {"cuda_graph": "full"}),
        (HOPPER_MOE, {"cuda_graph": "scoped"}, {"cuda_graph": "scoped", "cuda_graph_scopes": ["moe"]}),
        (HOPPER_MOE, {"moe_transport": "host-proxy"}, {"moe_transport": "gpu"}),
        (HOPPER_MOE, {"expert_imbalance": 1.5}, {"expert_imbalance": 1.0}),
        (HOPPER_MOE, {}, {"precision_scope": {"mxfp8": ["dispatch"]}}),
        (HOPPER_MOE, {"routing": "natural"}, {"routing": "forced"}),
        (HOPPER_MOE, {"cluster": {"fabric": "efa"}}, {"cluster": {"fabric": "ib"}}),
        (HOPPER_MOE, {"cluster": {"fabric": "tcp"}}, {"cluster": {"fabric": "efa"}}),
        (TITAN, {"compile": False}, {"compile": True}),
        (DENSE, {"packed_mean_tokens": 4096}, {"packed_mean_tokens": 512}),
        (DENSE, {"optimizer_state": "fp32"}, {"optimizer_state": "bf16"}),
        (DENSE, {"gradient_dtype": "fp32"}, {"gradient_dtype": "bf16"}),
        (BLACKWELL, {"precision_scope": {"bf16": ["qkv", "proj"]}}, {}),
        (BLACKWELL, {"precision_scope": {"bf16": ["mlp"]}}, {"precision_scope": {"mxfp8": ["mlp"]}}),
        (BLACKWELL, {"precision_scope": {"bf16_last_layers": 40}}, {"precision_scope": {}}),
    ],
)  # fmt: skip
def test_a_setting_costs_what_it_takes(base: Words, slower: Words, faster: Words) -> None:
    assert seconds(**{**base, **slower}) > seconds(**{**base, **faster})


def test_weights_kept_until_backward_are_gathered_once() -> None:
    words: Words = {"zero_stage": 3, "framework": "torch-fsdp2", "devices": 512, "batch": 512}
    again, kept = (seconds(**words, reshard_after_forward=value) for value in (True, False))
    assert again > kept


def test_named_modules_cost_no_more_than_the_whole_layer() -> None:
    """Seen for Mixtral on TPU v6e: ["moe"] was dearer than full recomputation."""
    words: Words = {
        "model": "mixtral-8x7b",
        "device": "tpu-v6e",
        "framework": "maxtext",
        "devices": 64,
        "zero_stage": 3,
    }
    named = seconds(**words, recompute="selective", recompute_modules=["moe"])
    assert named <= seconds(**words, recompute="full")


@pytest.mark.parametrize(
    ("sides", "ranks", "share"),
    [
        ([16, 1], 16, 0.5),
        ([8, 2], 16, 0.75),
        ([4, 4], 16, 1.0),
        ([16, 1], 4, 0.5),
        ([8, 2], 4, 0.5),
        ([2, 8], 4, 0.5),
        ([4, 4], 4, 0.5),
    ],
)
def test_a_group_has_the_links_of_the_axes_that_it_spans(sides: list[int], ranks: int, share: float) -> None:
    words: Words = {"device": "tpu-v6e", "devices": 16, "framework": "maxtext", "zero_stage": 3, "batch": 16}
    x = scene("llama-3.1-8b", cluster={"topology": {"torus_dimensions": sides}}, **words).x
    assert float(place(x, number(ranks), ONE).link_share) == share
