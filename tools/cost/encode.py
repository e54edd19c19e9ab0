"""Converts scenarios to arrays: the only place where the cost model meets the scenario vocabulary."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from tools.cost.arithmetic import number
from tools.cost.constants import RowKeys
from tools.cost.inputs import Array, Inputs
from tools.cost.mixers import layer_facts
from tools.cost.sizes import count_parameters
from tools.cost.traits import FUSED_DISPATCHERS, framework_traits
from tools.hardware import Device, get_device
from tools.scenario import (
    SCHEDULES,
    ClusterSpec,
    ModelSpec,
    Plan,
    PlanColumns,
    Scenario,
    columns_of,
)
from tools.scenario.limits import scale_up_size
from tools.scenario.spec import LoraSpec

Facts = dict[str, float]

GEMM_BYTES = {
    "fp32": 4.0,
    "fp16": 2.0,
    "bf16": 2.0,
    "fp8": 1.0,
    "mxfp8": 1.0 + 1 / 32,
    "nvfp4": 0.5 + 1 / 16,
    "int8": 1.0,
}
"""Bytes an operand takes with its scales: one for a tensor, for 32 values (OCP MX), for 16 values (NVFP4)."""


def encode(scenarios: Sequence[Scenario]) -> tuple[Inputs, RowKeys]:
    """One row per scenario; a single scenario gives scalars."""
    devices = [scenario_device(s.cluster) for s in scenarios]
    planned = [_planned(s) for s in scenarios]
    rows = [
        {**workload_facts(s, device), **carried_facts(plan)}
        for s, device, plan in zip(scenarios, devices, planned, strict=True)
    ]
    plans = _plan_columns(columns_of(planned))
    keys = RowKeys(
        [d.generation for d in devices],
        [d.name for d in devices],
        [s.training.framework for s in scenarios],
    )
    if len(rows) == 1:
        facts = {name: number(value) for name, value in rows[0].items()}
        return Inputs(**facts, **{name: column[0] for name, column in plans.items()}), keys
    columns = {name: np.array([row[name] for row in rows], dtype=np.float64) for name in rows[0]}
    return Inputs(**columns, **plans), keys


def encode_plans(scenario: Scenario, plans: PlanColumns) -> tuple[Inputs, RowKeys]:
    """Many plans of one scenario: scalars for the workload, arrays for the plans."""
    device = scenario_device(scenario.cluster)
    scalars = {name: number(value) for name, value in workload_facts(scenario, device).items()}
    keys = RowKeys([device.generation], [device.name], [scenario.training.framework])
    carried = {name: number(value) for name, value in carried_facts(None).items()}
    return Inputs(**scalars, **_plan_columns(plans), **carried), keys


def _plan_columns(p: PlanColumns) -> dict[str, Array]:
    columns = {
        "tp": p.tp,
        "pp": p.pp,
        "vpp": np.where(p.pp > 1, p.vpp, 1),
        "cp": p.cp,
        "ep": p.ep,
        "etp": p.etp,
        "dp": p.dp,
        "dp_shard": np.where(p.zero_stage > 0, p.dp_shard, 1),
        "zero": p.zero_stage,
        "micro_batch": p.micro_batch_size,
        "sequence_parallel": p.sequence_parallel,
        "recompute": p.recompute,
        "zero_bubble": p.schedule == SCHEDULES.index("zero_bubble"),
        "is_gpipe": p.schedule == SCHEDULES.index("gpipe"),
    }
    return {name: np.asarray(column, dtype=np.float64) for name, column in columns.items()}


MODULES = {
    "repeats_core": ("core_attn",),
    "repeats_norm": ("layernorm",),
    "repeats_mlp": ("mlp",),
    "repeats_shared": ("shared_experts",),
    "repeats_experts": ("moe",),
    "repeats_activation": ("moe_act",),
    "repeats_latent": ("mla_up_proj",),
}
"""What each module of `recompute_modules` repeats, by the names of Megatron-Core's --recompute-modules."""


def carried_facts(plan: Plan | None, modules: Sequence[str] | None = None) -> Facts:
    """The fields of a plan that the search leaves open; `modules` are recomputed if no plan says which."""
    modules = plan.recompute_modules if plan else modules
    layers = plan.recompute_layers if plan else None
    return {
        "recomputed_layers": float(layers) if layers else ALL_LAYERS,
        "repeats_stated": float(modules is not None),
        **{name: float(any(m in (modules or ()) for m in named)) for name, named in MODULES.items()},
    }


ALL_LAYERS = 1e9
"""More layers than a stage can have: all of them are recomputed."""


def scenario_device(cluster: ClusterSpec) -> Device:
    return get_device(cluster.device, cluster.overrides)


def _planned(scenario: Scenario) -> Plan:
    if scenario.plan is None:
        raise ValueError("a scenario without a plan cannot be predicted")
    return scenario.plan


def workload_facts(s: Scenario, device: Device) -> Facts:
    """Everything but the plan."""
    model = {**model_facts(s.model), **layer_facts(s.model, s.training.seq_len)}
    return {**model, **cluster_facts(s, device), **training_facts(s, device)}


@lru_cache(maxsize=256)
def model_facts(m: ModelSpec) -> Mapping[str, float]:
    latent = m.is_mla
    # Sparse attention reads the best `index_topk` keys: a window of that size on every layer.
    window = m.sliding_window or (0 if m.compress_ratios else m.index_topk)
    sliding_layers = m.num_sliding_layers if m.sliding_window else m.num_attention_layers
    return {
        "layers": m.num_hidden_layers,
        "moe_layers": m.num_moe_layers,
        "leading_dense": m.first_k_dense_replace if m.is_moe else 0,
        "hidden": m.hidden_size,
        "ffn": m.intermediate_size,
        "moe_ffn": m.moe_intermediate_size,
        "shared_ffn": m.shared_expert_intermediate_size or m.num_shared_experts * m.moe_intermediate_size,
        "experts": m.num_experts,
        "experts_per_token": m.num_experts_per_tok,
        "heads": m.num_attention_heads,
        "kv_heads": m.num_attention_heads if latent else m.num_key_value_heads,
        "qk_dim": m.qk_nope_head_dim + m.qk_rope_head_dim if latent else m.head_dim,
        "v_dim": m.v_head_dim or m.head_dim,
        "q_lora": m.q_lora_rank,
        "kv_lora": m.kv_lora_rank,
        "rope_dim": m.qk_rope_head_dim,
        "vocab": m.vocab_size,
        "up_matrices": 2.0 if m.gated_mlp else 1.0,
        "tied": float(m.tie_word_embeddings),
        "window": window or 1e12,
        "window_share": min(sliding_layers / max(m.num_attention_layers, 1), 1.0) if window else 0.0,
        "routing_groups": m.n_group or 0,
        "groups_per_token": m.topk_group or 0,
        "prediction_layers": m.num_nextn_predict_layers or 0,
    }


def cluster_facts(s: Scenario, device: Device) -> Facts:
    precision = s.training.precision
    half = next(device.peak_flops[name] for name in ("bf16", "fp16", "fp32") if name in device.peak_flops)
    peak = device.peak_flops[precision]
    topology = s.cluster.topology
    return {
        "devices": s.cluster.num_devices,
        "gemm_peak": peak,
        "half_peak": peak if precision == "fp32" else half,
        "memory_bytes": device.memory_bytes,
        "memory_bandwidth": device.memory_bandwidth_bytes_per_s,
        "compute_units": device.compute_units,
        "tile_m": device.tile_m,
        "tile_n": device.tile_n,
        "scale_up_bandwidth": device.intra_node_bytes_per_s,
        "scale_up_latency": device.intra_node_latency_s,
        "scale_out_bandwidth": device.inter_node_bytes_per_s
        / (topology.oversubscription if topology else 1.0),
        "scale_out_latency": device.inter_node_latency_s,
        "scale_up_size": scale_up_size(s.cluster, device),
        "torus_dimensions": _torus_dimensions(s.cluster, device),
        "scatter_passes": device.collectives.reduce_scatter_passes,
        "flat_rings": float(device.collectives.is_flat),
        "launch_s": device.launch_overhead_s,
        "exponentials_per_s": device.exponentials_per_s,
        "is_systolic": float(device.is_systolic),
        "power_share": power_share(device, half),
    }


POWER_OF_FULL_CLOCK = 0.7e-12
"""Watts per 16-bit FLOP/s at which a part holds its clock as well as an H100: 700 W for 989 TFLOP/s."""
CLOCK_BY_POWER = 1.0 / 3.0
"""Clock goes with power to this: dynamic power is frequency times the square of a voltage that rises with it,
so the exponent lies between 1/3 and 1/2."""


def power_share(device: Device, half_peak: float) -> float:
    """Share of its peak clock that a part with less power per FLOP/s than an H100 sustains."""
    return float(min(1.0, device.power_w / half_peak / POWER_OF_FULL_CLOCK) ** CLOCK_BY_POWER)


def _torus_dimensions(cluster: ClusterSpec, device: Device) -> float:
    """Axes of the slice that are longer than one chip; the device's own where the slice is not described."""
    sides = cluster.topology.torus_dimensions if cluster.topology else None
    return sum(side > 1 for side in sides) if sides and device.torus_dimensions else device.torus_dimensions


UNFUSED_KERNELS = 2.0
"""Launches without fused attention, norms and dropout over those with them: Megatron-LM of 2022."""
FA2_ON_NEWER = 0.55
"""FlashAttention-2 on Hopper and later over the vendor's kernel: 35-40% of the peak against 65-75%
(FlashAttention-3, arXiv 2407.08608, abstract and figure 5)."""
FA2_ON_AMD = 0.3
"""PyTorch's own attention on CDNA 3 and 4 over AMD's kernels (AITER): HipKittens' benchmarks on MI355X; AMD's
trace of Llama 3.1 70B in torchtitan, where attention reaches 0.21 of the products' rate, and 0.72 with AITER
(Primus, training deep dive)."""
FA2_AT_HOME = frozenset({"volta", "ampere", "ada", "blackwell-rtx", "cdna2", "cpu"})
"""Generations whose best attention kernel is FlashAttention-2 or older."""


GRACE_LINK = 200e9
PCIE_LINK = {"volta": 12e9, "ampere": 24e9, "ada": 24e9, "cdna2": 24e9, "cpu": 24e9}
PCIE_5_LINK = 50e9
"""Bytes per second between host and device, one direction, as large copies reach it: NVLink-C2C of Grace, and
PCI Express 3, 4 and 5 with 16 lanes."""


STORED_BYTES = {4: (4.0 + 0.127) / 8.0, 8: 1.0}
"""Of a quantized weight: QLoRA's NF4 with twice quantized scales takes 4.127 bits (Dettmers et al., arXiv
2305.14314, section 3); the scales of 8 bits, one per row, are left out (LLM.int8(), arXiv 2208.07339)."""


def training_facts(s: Scenario, device: Device) -> Facts:
    t, traits = s.training, framework_traits(s.training.framework)
    dispatcher = traits.dispatcher(t)
    is_grace = device.name in ("gb200", "gb300")
    value_bytes = 4.0 if t.precision == "fp32" else 2.0
    return {
        "seq": t.seq_len,
        "batch": t.global_batch_size,
        "gemm_bytes": GEMM_BYTES[t.precision],
        "value_bytes": value_bytes,
        "flash": float(t.flash_attention),
        "trained_share": adapter_share(s.model, t.lora) if t.lora else 1.0,
        "stored_bytes": STORED_BYTES.get(t.lora.weight_bits if t.lora else 16, value_bytes),
        "offloads_optimizer": float(t.optimizer_offload),
        "host_link": GRACE_LINK if is_grace else PCIE_LINK.get(device.generation, PCIE_5_LINK),
        "capacity": t.capacity_factor or 0.0,
        "gradient_bytes": traits.gradient(t.precision),
        "reduced_bytes": traits.reduced(t.precision),
        "scatters_pipeline": float(traits.scatters_pipeline),
        "flat_from_stage": traits.flat_from_stage,
        "messages_per_layer": traits.messages_per_layer,
        "stops_early": float(traits.recompute_stops_early),
        "tensor_overlap": float(traits.overlaps_tensor_traffic(t)),
        "data_overlap": float(traits.overlaps_data_traffic(t)),
        "expert_overlap": float(bool(t.overlap_moe_communication)),
        "attention_kernel": _attention_kernel(traits.attention_kernel, device) if t.flash_attention else 1.0,
        "selective_share": traits.selective_share,
        "kernels_per_layer": traits.kernels_per_layer * (1.0 if t.flash_attention else UNFUSED_KERNELS),
        "tensor_kernels": traits.tensor_kernels,
        "pipelined_tensor_kernels": traits.pipelined_tensor_kernels,
        "has_fused_dispatch": float(dispatcher in FUSED_DISPATCHERS),
        "gathers_tokens": float(dispatcher == "allgather"),
        "has_cuda_graph": float(traits.has_cuda_graph(t, device, s.model.is_moe)),
        "fuses_loss": float(traits.has_fused_loss(t)),
    }


def _attention_kernel(kernel: str, device: Device) -> float:
    """What the framework's attention kernel reaches of the best that the device has."""
    if kernel != "fa2" or device.is_systolic or device.generation in FA2_AT_HOME:
        return 1.0
    return FA2_ON_AMD if device.vendor == "amd" else FA2_ON_NEWER


def adapter_share(m: ModelSpec, lora: LoraSpec) -> float:
    """Parameters of the low-rank adapters over those of the model (Hu et al., arXiv 2106.09685)."""
    attention = 2 * m.hidden_size + m.head_dim * (2 * m.num_attention_heads + 2 * m.num_key_value_heads)
    attention += 2 * m.hidden_size
    mlp = (3 if m.gated_mlp else 2) * (m.hidden_size + (m.intermediate_size or m.moe_intermediate_size))
    widths = {"attention": attention, "mlp": mlp}
    adapters = lora.rank * m.num_hidden_layers * sum(widths[target] for target in lora.targets)
    # less than all even where adapters of a great rank outgrow a tiny model: its own weights stay frozen
    return min(adapters / count_parameters(m).total, 1.0 - 1e-9)
