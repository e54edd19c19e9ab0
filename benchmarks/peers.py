"""llm-analysis and calculon, asked for the figures that ASAP predicts.

llm-analysis is taken from where Python finds it (`make bench-peers`); calculon, which is not on PyPI, from a
checkout (github.com/calculon-ai/calculon). Where a peer has no word for something, it gets the nearest that
it has: to calculon a gated MLP is a plain one of half as much width again, grouped heads are all heads.
"""

import json
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tools.cost.memory import GIB
from tools.scenario import Scenario

SYSTEMS = {"a100-sxm-80gb": "a100_80g.json", "h100-sxm-80gb": "h100_80g_nvl8.json"}
"""calculon's descriptions of devices we know."""
DEVICES = ("a100-sxm-40gb", "a100-sxm-80gb", "h100-sxm-80gb")
"""Of llm-analysis, under our names."""
SIXTEEN_BITS = ("bf16", "fp16")

Plan = dict[str, int]
"""Recomputation as a number: none, selective, full."""


class RefusedError(Exception):
    """The peer has no words for this model, device or plan."""


@dataclass(frozen=True)
class Figures:
    step_time_s: float
    peak_memory_gib: float


Peer = Callable[[Plan], Figures]


def llm_analysis(scenario: Scenario, efficiency: float = 0.5) -> Peer:
    """`efficiency` is the share of peak FLOP/s that the user states."""
    from llm_analysis.analysis import ActivationRecomputation, DSZeRO, LLMAnalysis  # type: ignore[import-not-found]
    from llm_analysis.config import (  # type: ignore[import-not-found]
        ModelConfig,
        ParallelismConfig,
        get_dtype_config_by_name,
        get_gpu_config_by_name,
    )  # fmt: skip

    logging.disable(logging.CRITICAL)
    m, t = scenario.model, scenario.training
    if (
        scenario.cluster.device not in DEVICES
        or t.precision not in SIXTEEN_BITS
        or _is_uneven_mixture(scenario)
    ):
        raise RefusedError
    width = m.moe_intermediate_size if m.is_moe else m.intermediate_size
    model = ModelConfig(
        name=m.name, num_layers=m.num_hidden_layers, n_head=m.num_attention_heads, hidden_dim=m.hidden_size,
        vocab_size=m.vocab_size, max_seq_len=t.seq_len, num_key_value_heads=m.num_key_value_heads,
        ffn_embed_dim=width, expansion_ratio=width / m.hidden_size,
        moe_num_experts=max(m.num_experts, 1), moe_top_k=max(m.num_experts_per_tok, 1),
    )  # fmt: skip
    gpu = get_gpu_config_by_name(scenario.cluster.device)
    dtype = get_dtype_config_by_name("w16a16e16")
    recomputes = (
        ActivationRecomputation.NONE,
        ActivationRecomputation.SELECTIVE,
        ActivationRecomputation.FULL,
    )

    def ask(plan: Plan) -> Figures:
        if plan["cp"] > 1:
            raise RefusedError
        parallel = ParallelismConfig(
            tp_size=plan["tp"], pp_size=plan["pp"], dp_size=plan["dp"], ep_size=plan["ep"],
            sp_size=plan["tp"] if plan["sequence_parallel"] else 1,
        )  # fmt: skip
        try:
            analysis = LLMAnalysis(model, gpu, dtype, parallel, flops_efficiency=efficiency)
            summary = analysis.training(
                batch_size_per_gpu=plan["micro_batch_size"], global_batch_size=t.global_batch_size,
                seq_len=t.seq_len, total_num_tokens=10**12, flash_attn=t.flash_attention,
                activation_recomputation=recomputes[plan["recompute"]], ds_zero=DSZeRO(plan["zero_stage"]),
                mlp_gated_linear_units=m.gated_mlp,
            )  # fmt: skip
        except AssertionError as error:
            raise RefusedError from error
        memory_bytes = summary["(weight+op_state+grad+act)_memory_per_gpu"]
        return Figures(float(summary["latency_per_iter"]), float(memory_bytes) / GIB)

    return ask


def _is_uneven_mixture(scenario: Scenario) -> bool:
    """Shared experts, or dense layers among those of experts."""
    m = scenario.model
    shared = m.num_shared_experts > 0 or m.shared_expert_intermediate_size > 0
    return m.is_moe and (shared or m.first_k_dense_replace > 0 or m.moe_layer_freq != 1)


def calculon(scenario: Scenario, checkout: Path) -> Peer:
    m, t = scenario.model, scenario.training
    if m.is_moe or scenario.cluster.device not in SYSTEMS or t.precision not in SIXTEEN_BITS:
        raise RefusedError
    if str(checkout) not in sys.path:
        sys.path.insert(0, str(checkout))
    from calculon import System  # type: ignore[import-not-found]
    from calculon.llm import Llm  # type: ignore[import-not-found]

    application = Llm.Application({
        "hidden": m.hidden_size, "feedforward": m.intermediate_size * (3 if m.gated_mlp else 2) // 2,
        "seq_size": t.seq_len, "attn_heads": m.num_attention_heads, "attn_size": m.head_dim,
        "num_blocks": m.num_hidden_layers,
    })  # fmt: skip
    system = System(json.loads((checkout / "systems" / SYSTEMS[scenario.cluster.device]).read_text()))
    quiet = logging.getLogger("calculon")

    def ask(plan: Plan) -> Figures:
        if plan["cp"] > 1 or plan["zero_stage"] > 1:
            raise RefusedError
        try:
            model = Llm(application, quiet)
            model.compile(system, Llm.Execution(*_calculon_values(plan, scenario)))
            model.run(system)
        except (AssertionError, Llm.Error) as error:
            raise RefusedError from error
        return Figures(float(model.get_total_time()), float(model.get_mem_tier1_cap_req()) / GIB)

    return ask


def _calculon_values(plan: Plan, scenario: Scenario) -> tuple[object, ...]:
    """In the order of its constructor: degrees and networks, batch and type, recomputation and the rest."""
    recompute = ("none", "attn_only", "full")[plan["recompute"]]
    degrees = (scenario.cluster.num_devices, plan["tp"], plan["pp"], plan["dp"], *_networks(plan, scenario))
    batch = (scenario.training.global_batch_size, plan["micro_batch_size"], "float16", True, "multihead")
    sharded = plan["zero_stage"] > 0 and plan["dp"] > 1
    sequence_parallel = plan["tp"] > 1 and plan["sequence_parallel"]
    communication = ("rs_ag" if sequence_parallel else "ar", "none", False, plan["dp"] > 1)
    return (*degrees, *batch, recompute, plan["vpp"], sharded, *communication, False, False, False, True)


def _networks(plan: Plan, scenario: Scenario) -> tuple[int, int, int]:
    """Of tensor, pipeline and data ranks: 0 is inside a node, 1 between nodes. Stages lie furthest apart."""
    node = scenario.cluster.devices_per_node
    return (
        int(plan["tp"] > node),
        int(plan["tp"] * plan["dp"] * plan["pp"] > node),
        int(plan["tp"] * plan["dp"] > node),
    )
