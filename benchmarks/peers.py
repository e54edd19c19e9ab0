"""llm-analysis, calculon, SimuMax and Primus, asked for the figures that ASAP predicts.

llm-analysis is taken from where Python finds it (`make peers`, or a checkout on its path); the others, which
are not on PyPI, from checkouts (github.com/calculon-ai/calculon, MooreThreads/SimuMax, AMD-AGI/Primus). Where
a peer has no word for something, it gets the nearest that it has: to calculon a gated MLP is a plain one of
half as much width again, grouped heads are all heads. A GPU that a peer does not describe is its nearest one
with our catalogue's figures.
"""

import hashlib
import json
import logging
import math
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from tools.hardware import Device, get_device
from tools.physics.memory import GIB
from tools.scenario import Scenario

SYSTEMS = {"a100-sxm-80gb": "a100_80g.json", "h100-sxm-80gb": "h100_80g_nvl8.json"}
"""calculon's descriptions of devices we know."""
DEVICES = ("a100-sxm-40gb", "a100-sxm-80gb", "h100-sxm-80gb")
"""Those that llm-analysis describes, under our names."""
SIXTEEN_BITS = ("bf16", "fp16")
PEER_ERRORS = (
    ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError,
)  # fmt: skip
"""What SimuMax and Primus raise for a plan or a model that they do not support."""
EIGHT_BITS = ("fp8", "mxfp8")
GB, TERA = 1e9, 1e12

Plan = dict[str, int]
"""Recomputation as a number: none, selective, full."""


class RefusedError(Exception):
    """The peer has no words for this model, device or plan."""


@dataclass(frozen=True)
class Figures:
    step_time_s: float
    """NaN if the peer tells memory only."""
    peak_memory_gib: float


Peer = Callable[[Plan], Figures]


def llm_analysis(scenario: Scenario, efficiency: float = 0.5) -> Peer:
    """`efficiency` is the share of peak FLOP/s that the user states."""
    import llm_analysis.analysis as analysis_module  # type: ignore[import-not-found]
    from llm_analysis.analysis import ActivationRecomputation, DSZeRO, LLMAnalysis
    from llm_analysis.config import (  # type: ignore[import-not-found]
        GPUConfig,
        ModelConfig,
        ParallelismConfig,
        get_dtype_config_by_name,
        get_gpu_config_by_name,
    )  # fmt: skip

    # Its check of its own FLOPs takes every MLP of a model without grouped heads to be four times as wide as
    # the model, and fails for the others.
    analysis_module.within_range = lambda *_: True
    logging.disable(logging.CRITICAL)
    m, t = scenario.model, scenario.training
    if t.precision not in SIXTEEN_BITS or _is_uneven_mixture(scenario) or m.is_mla:
        raise RefusedError
    device = gpu_of(scenario)
    width = m.moe_intermediate_size if m.is_moe else m.intermediate_size
    model = ModelConfig(
        name=m.name, num_layers=m.num_hidden_layers, n_head=m.num_attention_heads, hidden_dim=m.hidden_size,
        vocab_size=m.vocab_size, max_seq_len=t.seq_len, num_key_value_heads=m.num_key_value_heads,
        ffn_embed_dim=width, expansion_ratio=width / m.hidden_size,
        moe_num_experts=max(m.num_experts, 1), moe_top_k=max(m.num_experts_per_tok, 1),
    )  # fmt: skip
    gated = {"mlp_gated_linear_units": m.gated_mlp}
    if is_newer := hasattr(model, "mlp_gated_linear_units"):
        model.mlp_gated_linear_units = m.gated_mlp
    if device.name in DEVICES and not scenario.cluster.overrides:
        gpu = get_gpu_config_by_name(device.name)
    else:
        gpu = GPUConfig(
            name=device.name, mem_per_GPU_in_GB=device.memory_bytes / GB,
            hbm_bandwidth_in_GB_per_sec=device.memory_bandwidth_bytes_per_s / GB,
            intra_node_bandwidth_in_GB_per_sec=device.intra_node_bytes_per_s / GB,
            intra_node_min_message_latency=device.intra_node_latency_s,
            peak_fp16_TFLOPS=device.peak_flops["bf16"] / TERA,
            inter_node_bandwidth_in_GB_per_sec=device.inter_node_bytes_per_s * device.devices_per_node / GB,
        )  # fmt: skip
    dtype = get_dtype_config_by_name("w16a16e16")
    # Of FlashAttention nothing but the output is kept: to recompute the scores too would count them twice.
    selective = "NONE" if t.flash_attention else "ATTN_COMPUTE" if is_newer else "SELECTIVE"
    recomputes = [getattr(ActivationRecomputation, name) for name in ("NONE", selective, "FULL")]

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
                **({} if is_newer else gated),
            )  # fmt: skip
        except (AssertionError, ZeroDivisionError) as error:
            raise RefusedError from error
        peak = "estimated_peak_memory_per_gpu" if is_newer else "(weight+op_state+grad+act)_memory_per_gpu"
        memory_bytes = summary[peak]
        return Figures(float(summary["latency_per_iter"]), float(memory_bytes) / GIB)

    return ask


def gpu_of(scenario: Scenario) -> Device:
    """Of a job that peers know: all weights are trained, every layer is attention, the devices are GPUs."""
    device = get_device(scenario.cluster.device, scenario.cluster.overrides)
    if device.vendor not in ("nvidia", "amd") or scenario.training.lora or scenario.model.layer_types:
        raise RefusedError
    return device


def _is_uneven_mixture(scenario: Scenario) -> bool:
    """Shared experts, or dense layers among those of experts."""
    m = scenario.model
    shared = m.num_shared_experts > 0 or m.shared_expert_intermediate_size > 0
    return m.is_moe and (shared or m.first_k_dense_replace > 0 or m.moe_layer_freq != 1)


def calculon(scenario: Scenario, checkout: Path) -> Peer:
    m, t = scenario.model, scenario.training
    if m.is_moe or m.is_mla or t.precision not in (*SIXTEEN_BITS, *EIGHT_BITS):
        raise RefusedError
    device = gpu_of(scenario)
    if str(checkout) not in sys.path:
        sys.path.insert(0, str(checkout))
    from calculon import System  # type: ignore[import-not-found]
    from calculon.llm import Llm  # type: ignore[import-not-found]

    datatype = "float16" if t.precision in SIXTEEN_BITS else "float8"
    described = _calculon_system(device, checkout, is_own=not scenario.cluster.overrides)
    if datatype not in described["matrix"]:
        raise RefusedError
    application = Llm.Application({
        "hidden": m.hidden_size, "feedforward": m.intermediate_size * (3 if m.gated_mlp else 2) // 2,
        "seq_size": t.seq_len, "attn_heads": m.num_attention_heads, "attn_size": m.head_dim,
        "num_blocks": m.num_hidden_layers,
    })  # fmt: skip
    system = System(described)
    quiet = logging.getLogger("calculon")

    def ask(plan: Plan) -> Figures:
        if plan["cp"] > 1 or plan["zero_stage"] > 1:
            raise RefusedError
        try:
            model = Llm(application, quiet)
            model.compile(system, Llm.Execution(*_calculon_values(plan, scenario, datatype)))
            model.run(system)
        except (AssertionError, Llm.Error) as error:
            raise RefusedError from error
        return Figures(float(model.get_total_time()), float(model.get_mem_tier1_cap_req()) / GIB)

    return ask


def _calculon_system(device: Device, checkout: Path, is_own: bool) -> dict[str, Any]:
    """Its own file if it has one, else the file of its nearest device with our figures in it. Memory is
    without bound: whether a plan fits is judged by what it needs.
    """
    nearest = "a100-sxm-80gb" if device.generation == "ampere" else "h100-sxm-80gb"
    file = SYSTEMS.get(device.name, SYSTEMS[nearest])
    system: dict[str, Any] = json.loads((checkout / "systems" / file).read_text())
    if device.name not in SYSTEMS or not is_own:
        for name, precision in (("float16", "bf16"), ("float8", "fp8")):
            if name in system["matrix"] and precision in device.peak_flops:
                system["matrix"][name]["tflops"] = device.peak_flops[precision] / TERA
        system["mem1"]["GBps"] = device.memory_bandwidth_bytes_per_s / GB
        inside, between = system["networks"]
        inside["bandwidth"], inside["size"] = device.intra_node_bytes_per_s / GB, device.fast_domain_devices
        between["bandwidth"] = device.inter_node_bytes_per_s / GB
    system["mem1"]["GiB"] = 1_000_000
    inside = system["networks"][0]
    inside["must_be_filled"] = False
    return system


def _calculon_values(plan: Plan, scenario: Scenario, datatype: str) -> tuple[object, ...]:
    """In the order of its constructor: degrees and networks, batch and type, recomputation and the rest.
    FlashAttention, which it does not know, is attention that is computed again and not stored.
    """
    keeps_scores = not scenario.training.flash_attention
    recompute = ("none" if keeps_scores else "attn_only", "attn_only", "full")[plan["recompute"]]
    degrees = (scenario.cluster.num_devices, plan["tp"], plan["pp"], plan["dp"], *_networks(plan, scenario))
    batch = (scenario.training.global_batch_size, plan["micro_batch_size"], datatype, True, "multihead")
    sharded = plan["zero_stage"] > 0 and plan["dp"] > 1
    sequence_parallel = plan["tp"] > 1 and plan["sequence_parallel"]
    communication = ("rs_ag" if sequence_parallel else "ar", "none", False, plan["dp"] > 1)
    return (*degrees, *batch, recompute, plan["vpp"], sharded, *communication, False, False, False, True)


def _networks(plan: Plan, scenario: Scenario) -> tuple[int, int, int]:
    """Of tensor, pipeline and data ranks: 0 is inside a node, 1 between nodes. Stages lie furthest apart."""
    node = get_device(scenario.cluster.device).fast_domain_devices
    return (
        int(plan["tp"] > node),
        int(plan["tp"] * plan["dp"] * plan["pp"] > node),
        int(plan["tp"] * plan["dp"] > node),
    )


def simumax(scenario: Scenario, checkout: Path) -> Peer:
    """Its analytical mode (`PerfLLM`). It ignores ZeRO 2 and 3, so that these plans are refused here."""
    m, t = scenario.model, scenario.training
    device = gpu_of(scenario)
    uneven = m.moe_layer_freq != 1 or m.moe_latent_size > 0 or m.num_nextn_predict_layers > 0
    if t.precision not in SIXTEEN_BITS or uneven or not t.flash_attention:
        raise RefusedError
    from simumax.core.config import (  # type: ignore[import-not-found]
        ModelConfig,
        StrategyConfig,
        SystemConfig,
    )
    from simumax.core.perf_llm import PerfLLM  # type: ignore[import-not-found]

    shared = m.shared_expert_intermediate_size or int(m.num_shared_experts * m.moe_intermediate_size)
    system = _simumax_system(device, checkout)

    def ask(plan: Plan) -> Figures:
        if plan["zero_stage"] > 1 or plan.get("recompute_modules"):
            raise RefusedError
        model = ModelConfig(
            hidden_size=m.hidden_size, head_num=m.num_attention_heads, kv_head_num=m.num_key_value_heads,
            model_name=m.name, head_size=m.head_dim, intermediate_size=m.intermediate_size,
            layer_num=m.num_hidden_layers, vocab_size=m.vocab_size, use_swiglu=m.gated_mlp,
            expert_num=max(m.num_experts, 1), topk=m.num_experts_per_tok or None,
            attention_type="mla" if m.is_mla else "mha", moe_ffn_hidden_size=m.moe_intermediate_size or None,
            moe_shared_expert_intermediate_size=shared or None, v_head_dim=m.v_head_dim or None,
            qk_head_dim=m.qk_nope_head_dim or None, qk_pos_emb_head_dim=m.qk_rope_head_dim or None,
            q_lora_rank=m.q_lora_rank or None, kv_lora_rank=m.kv_lora_rank or None,
            dense_layers=m.first_k_dense_replace,
        )  # fmt: skip
        replicas = plan["dp"] * plan["micro_batch_size"]
        if t.global_batch_size % replicas:
            raise RefusedError
        layers = -(-m.num_hidden_layers // plan["pp"])
        strategy = StrategyConfig(
            seq_len=t.seq_len, micro_batch_size=plan["micro_batch_size"],
            micro_batch_num=t.global_batch_size // replicas, dtype="bf16",
            world_size=scenario.cluster.num_devices, tp_size=plan["tp"], cp_size=plan["cp"],
            pp_size=plan["pp"], interleaving_size=plan["vpp"], pp_comm_async=plan["vpp"] == 1,
            ep_size=plan["ep"], etp_size=plan["etp"] if m.is_moe else 1,
            enable_sequence_parallel=bool(plan["sequence_parallel"]) and plan["tp"] > 1,
            zero_state=plan["zero_stage"], enable_recompute=plan["recompute"] > 0,
            recompute_granularity=(None, "sdp_only", "full_block")[plan["recompute"]],
            recompute_layer_num=(plan.get("recompute_layers") or layers) if plan["recompute"] else 0,
        )  # fmt: skip
        peer = PerfLLM()
        with redirect_stdout(StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                peer.configure(strategy, model, SystemConfig.init_from_config_file(str(system)))
                peer.run_estimate()
                tokens_per_s = peer.analysis_cost().data["throughput_per_accelerator"]
                stages = peer.analysis_mem().data
            except (
                AssertionError,
                AttributeError,
                KeyError,
                TypeError,
                ValueError,
                ZeroDivisionError,
            ) as error:
                raise RefusedError from error
        peaks = [stages] if "peak_mem" in stages else list(stages.values())
        tokens = t.global_batch_size * t.seq_len
        return Figures(
            tokens / scenario.cluster.num_devices / tokens_per_s,
            max(_simumax_gib(stage["peak_mem"]) for stage in peaks),
        )

    return ask


def _simumax_gib(printed: str) -> float:
    """From "43.6702 GB", by which it means GiB."""
    value, unit = printed.split()
    return float(value) * 1024.0 ** ("B", "KB", "MB", "GB", "TB").index(unit) / GIB


def _simumax_system(device: Device, checkout: Path) -> Path:
    """Its file for B200, with our catalogue's link between nodes. For others that file's form and networks:
    operators as efficient as its file for the A100 says by default, and our catalogue's figures.
    """
    described = json.loads((checkout / "configs" / "system" / "b200_bf16_ceperm.json").read_text())
    if device.name != "b200":
        for name, operator in described["accelerator"]["op"].items():
            eight_bits = 2 if name.startswith("fp8") else 1
            operator["tflops"] = eight_bits * device.peak_flops["bf16"] / TERA
            if device.generation != "blackwell":
                operator["efficient_factor"], operator["accurate_efficient_factor"] = 0.75, {}
        for bandwidth in described["accelerator"]["bandwidth"].values():
            bandwidth["gbps"] = device.memory_bandwidth_bytes_per_s / GB
        described["num_per_node"] = device.fast_domain_devices
        for name in ("low_intra_node", "high_intra_node"):
            described["networks"][name]["bandwidth"]["gbps"] = device.intra_node_bytes_per_s / GB
    # It states what leaves a node, and divides that by the node's devices.
    node_bytes_per_s = device.inter_node_bytes_per_s * described["num_per_node"]
    described["networks"]["inter_node"]["bandwidth"]["gbps"] = node_bytes_per_s / GB
    described["accelerator"]["mem_gbs"] = device.memory_bytes / GIB
    digest = hashlib.sha256(json.dumps(described).encode()).hexdigest()[:12]
    file = Path(gettempdir()) / f"simumax-{device.name}-{digest}.json"
    file.write_text(json.dumps(described))
    return file


def primus(scenario: Scenario) -> Peer:
    """Its memory projection in the mode that needs no GPU. Tensor parallelism and ZeRO above 1 are refused
    here: it counts parameters undivided. Its time without a GPU is for AMD's devices only, on which the open
    runs have nothing that it describes.
    """
    m, t = scenario.model, scenario.training
    gpu_of(scenario)
    from primus.core.projection.module_profilers.language_model import (  # type: ignore[import-not-found]
        build_profiler,
    )
    from primus.core.projection.training_config import (  # type: ignore[import-not-found]
        ModelConfig,
        ModelParallelConfig,
        RuntimeConfig,
        TrainingConfig,
    )
    from primus.core.projection.workload_registry import (  # type: ignore[import-not-found]
        resolve_top_level_spec,
    )

    shared = m.shared_expert_intermediate_size or int(m.num_shared_experts * m.moe_intermediate_size)
    eight_bits = t.precision in EIGHT_BITS
    if t.precision not in (*SIXTEEN_BITS, *EIGHT_BITS) or m.moe_latent_size:
        raise RefusedError
    model = ModelConfig(
        num_layers=m.num_hidden_layers, hidden_size=m.hidden_size, padded_vocab_size=m.vocab_size,
        ffn_hidden_size=m.intermediate_size, num_attention_heads=m.num_attention_heads,
        kv_channels=m.head_dim, group_query_attention=m.num_key_value_heads < m.num_attention_heads,
        num_query_groups=m.num_key_value_heads, multi_latent_attention=m.is_mla,
        use_flash_attn=t.flash_attention, qk_head_dim=m.qk_nope_head_dim,
        qk_pos_emb_head_dim=m.qk_rope_head_dim, v_head_dim=m.v_head_dim, q_lora_rank=m.q_lora_rank,
        kv_lora_rank=m.kv_lora_rank, swiglu=m.gated_mlp, num_experts=m.num_experts,
        moe_ffn_hidden_size=m.moe_intermediate_size,
        moe_pattern=[int(m.is_moe_layer(layer)) for layer in range(m.num_hidden_layers)],
        moe_router_topk=m.num_experts_per_tok, moe_shared_expert_intermediate_size=shared,
        share_embeddings_and_output_weights=m.tie_word_embeddings,
        fp8="hybrid" if eight_bits else None, fp8_recipe="mxfp8" if t.precision == "mxfp8" else None,
    )  # fmt: skip

    def ask(plan: Plan) -> Figures:
        if plan["tp"] > 1 or plan["zero_stage"] > 1 or plan.get("recompute_modules"):
            raise RefusedError
        # It reads the size of the cluster from here.
        os.environ.update(NNODES=str(scenario.cluster.num_devices), GPUS_PER_NODE="1")  # noqa: TID251
        layers = plan.get("recompute_layers") or -(-m.num_hidden_layers // plan["pp"])
        config = TrainingConfig(
            model,
            RuntimeConfig(t.global_batch_size, plan["micro_batch_size"], t.seq_len, plan["dp"]),
            ModelParallelConfig(
                tensor_model_parallel_size=plan["tp"], pipeline_model_parallel_size=plan["pp"],
                virtual_pipeline_model_parallel_size=plan["vpp"], context_model_parallel_size=plan["cp"],
                expert_model_parallel_size=plan["ep"],
                use_distributed_optimizer=plan["zero_stage"] == 1,
                recompute_granularity=(None, "selective", "full")[plan["recompute"]],
                recompute_num_layers=layers if plan["recompute"] == 2 else 0,
                recompute_method="block" if plan["recompute"] == 2 else None,
            ),
        )  # fmt: skip
        try:
            with redirect_stdout(StringIO()):
                peer = build_profiler(resolve_top_level_spec(config))
                state_bytes = peer.estimated_num_params(rank=0) * peer.get_num_bytes_per_param()
                total = state_bytes + peer.estimated_activation_memory(plan["micro_batch_size"], t.seq_len)
        except PEER_ERRORS as error:
            raise RefusedError from error
        return Figures(math.nan, float(total) / GIB)

    return ask
