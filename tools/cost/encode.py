"""Converts scenarios to arrays: the only place where the cost model meets the scenario vocabulary."""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from tools.cost.constants import RowKeys
from tools.cost.inputs import Array, Inputs
from tools.cost.mixers import layer_facts
from tools.hardware import Device, get_device
from tools.scenario import (
    SCHEDULES,
    ClusterSpec,
    ModelSpec,
    Plan,
    PlanColumns,
    Scenario,
    TrainingSpec,
    columns_of,
)

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
    """One row a scenario; a single scenario gives scalars."""
    devices = [scenario_device(s.cluster) for s in scenarios]
    rows = [workload_facts(s, device) for s, device in zip(scenarios, devices, strict=True)]
    workload = {name: np.array([row[name] for row in rows], dtype=np.float64) for name in rows[0]}
    plans = _plan_columns(columns_of([_planned(s) for s in scenarios]))
    columns = {**workload, **plans}
    inputs = Inputs(**{name: column if len(rows) > 1 else column[0] for name, column in columns.items()})
    stacks = [stack_name(s.training) for s in scenarios]
    return inputs, RowKeys([d.generation for d in devices], [d.name for d in devices], stacks)


def encode_plans(scenario: Scenario, plans: PlanColumns) -> tuple[Inputs, RowKeys]:
    """Many plans of one scenario: scalars for the workload, arrays for the plans."""
    device = scenario_device(scenario.cluster)
    scalars = {name: np.asarray(float(value)) for name, value in workload_facts(scenario, device).items()}
    keys = RowKeys([device.generation], [device.name], [stack_name(scenario.training)])
    return Inputs(**scalars, **_plan_columns(plans)), keys


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


def stack_name(t: TrainingSpec) -> str:
    """A framework before and after fused attention is two programs: other kernels, other overlap."""
    return t.framework if t.flash_attention else f"{t.framework} before flash"


def scenario_device(cluster: ClusterSpec) -> Device:
    return get_device(cluster.device, cluster.overrides)


def _planned(scenario: Scenario) -> Plan:
    if scenario.plan is None:
        raise ValueError("a scenario without a plan cannot be predicted")
    return scenario.plan


def workload_facts(s: Scenario, device: Device) -> Facts:
    """Everything but the plan."""
    model = {**model_facts(s.model), **layer_facts(s.model, s.training.seq_len)}
    return {**model, **cluster_facts(s, device), **training_facts(s.training)}


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
        "scale_up_size": _scale_up_size(s.cluster, device),
        "torus_dimensions": _torus_dimensions(s.cluster, device),
        "scatter_passes": device.collectives.reduce_scatter_passes,
        "flat_rings": float(device.collectives.is_flat),
        "launch_s": device.launch_overhead_s,
    }


def _scale_up_size(cluster: ClusterSpec, device: Device) -> float:
    """Devices that fast links join: the node, or a larger domain where the device has one."""
    if cluster.topology and cluster.topology.nvlink_domain_size:
        return cluster.topology.nvlink_domain_size
    if cluster.topology and cluster.topology.torus_dimensions:
        return math.prod(cluster.topology.torus_dimensions)
    beyond_node = device.fast_domain_devices > device.devices_per_node
    return (
        device.fast_domain_devices
        if beyond_node
        else min(device.fast_domain_devices, cluster.devices_per_node)
    )


def _torus_dimensions(cluster: ClusterSpec, device: Device) -> float:
    """Axes of the slice that are longer than one chip; the device's own where the slice is not described."""
    sides = cluster.topology.torus_dimensions if cluster.topology else None
    return sum(side > 1 for side in sides) if sides and device.torus_dimensions else device.torus_dimensions


def training_facts(t: TrainingSpec) -> Facts:
    return {
        "seq": t.seq_len,
        "batch": t.global_batch_size,
        "gemm_bytes": GEMM_BYTES[t.precision],
        "value_bytes": 4.0 if t.precision == "fp32" else 2.0,
        "flash": float(t.flash_attention),
    }
