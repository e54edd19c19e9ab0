"""Converts scenarios to arrays: the only place where the cost model meets the scenario vocabulary."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tools.hardware import Device, get_device
from tools.physics.arithmetic import number
from tools.physics.inputs import VERSION_FIELDS, Array, Inputs, RowKeys
from tools.physics.mixers import layer_facts
from tools.physics.sizes import count_parameters
from tools.physics.traits import CONTEXT_EXCHANGES, FUSED_DISPATCHERS, framework_traits, held_bytes
from tools.scenario import ClusterSpec, ModelSpec, PlanColumns, Scenario
from tools.scenario.limits import scale_up_size
from tools.scenario.recipes import TUNED_FABRICS, run_trainings, scenario_fabric
from tools.scenario.spec import PLAN_ROLES, Fabric, LoraSpec, TrainingSpec

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
POWER_OF_FULL_CLOCK = 0.7e-12
"""Watts per 16-bit FLOP/s at which a part holds its clock as well as an H100: 700 W for 989 TFLOP/s."""
CLOCK_BY_POWER = 1.0 / 3.0
"""Clock goes with power to this: dynamic power is frequency times the square of a voltage that rises with it,
so the exponent lies between 1/3 and 1/2."""
UNFUSED_KERNELS = 2.0
"""Launches without fused attention, norms and dropout over those with them: Megatron-LM of 2022."""
MAX_TORUS = 3
"""Axes of a torus (`Device.torus_dimensions`)."""
PROXY_MESSAGE_S = 2 * 0.4e-6
"""A CPU thread posts each token's message and, as EFA delivers out of order, a signal after it (NVSHMEM's
libfabric transport: DeepEP pull request 574). A post takes 0.15 us (UCCL-EP's threads, arXiv 2512.19849: 7 kB
tokens at 400 Gbit/s) to 0.5 us; 0.4 is read off 64 H100 on EFA (runs/aws-moe)."""


@dataclass(frozen=True)
class FabricFacts:
    """What joins the nodes, apart from its bandwidth."""

    latency: float
    """A message's latency over InfiniBand's."""
    half_rate_bytes: float
    """Bytes to one peer at which a message reaches half of the line."""
    host_state: float
    """Time of a launch over that on the vendors' own systems."""


FABRICS = {
    "ib": FabricFacts(1.0, 0.3e6, 1.0),
    "roce": FabricFacts(1.5, 0.3e6, 1.0),
    "efa": FabricFacts(4.0, 0.3e6, 1.5),
    "tcp": FabricFacts(8.0, 1.0e6, 1.5),
}
"""Latencies: NCCL's tuning model for InfiniBand; SRD about four times as long (De Sensi et al., arXiv
2408.14090). Cloud instances launch 1.5 times as slowly (read off runs/aws-moe: an assumption elsewhere)."""
SLOW_NETWORK = 0.5
"""Share of the catalogue's card per device at which a cluster is another environment than its like."""
EIGHT_BIT_ATTENTION = 1.5
"""Rate of attention in 8 bits over 16: 1.2 of 0.74 PFLOP/s forward (FlashAttention-3, arXiv 2407.08608), less
backward, whose softmax stays in 16 bits."""
NATURAL_IMBALANCE = 1.2
"""Tokens of the busiest rank over the mean where a loss balances them: an assumption."""
OPTIMIZER_BYTES = {"fp32": 30.0, "bf16": 22.0}
"""Per parameter that Adam updates: gradient, master weight and two moments read, three of them and the 16-bit
copy written; moments of 16 bits halve their four passes."""
WIDE_MODULES: Mapping[str, str] = {
    "wide_qkv": "qkv",
    "wide_proj": "proj",
    "wide_mlp": "mlp",
    "wide_experts": "experts",
    "wide_shared": "shared_experts",
    "wide_latent": "latent",
    "wide_mixer_in": "mamba_in",
    "wide_mixer_out": "mamba_out",
}
DEFAULT_SCOPES = {
    True: frozenset({"attn", "mamba", "moe_router", "moe_preprocess"}),
    False: frozenset({"attn", "mamba", "mlp"}),
}
"""What recipes graph of a mixture of experts, and of other models."""
ROUTING_LAUNCHES = {"moe_router": 0.2, "moe_preprocess": 0.2}
"""Shares of an expert layer's launches that these graphs take over; dispatch and experts stay eager."""
STORED_BYTES = {4: (4.0 + 0.127) / 8.0, 8: 1.0}
"""Quantized weights: QLoRA's NF4 with twice quantized scales takes 4.127 bits (Dettmers et al., arXiv
2305.14314, section 3); the scales of 8 bits, one per row, are left out (LLM.int8(), arXiv 2208.07339)."""


def fabric_code(fabric: Fabric | None) -> float:
    """0: none is crossed."""
    return 0.0 if fabric is None else 1.0 + list(FABRICS).index(fabric)


def crossed_fabric(cluster: ClusterSpec) -> Fabric | None:
    """The fabric that a job on the whole cluster crosses; None if fast links join all its devices."""
    device = scenario_device(cluster)
    is_inside = cluster.num_devices <= scale_up_size(cluster, device)
    return None if is_inside else cluster.fabric or device.traits.fabric


def encode(scenarios: Sequence[Scenario]) -> tuple[Inputs, RowKeys]:
    """One row per scenario; a single scenario gives scalars."""
    devices = [scenario_device(s.cluster) for s in scenarios]
    plans = [s.plan for s in scenarios if s.plan is not None]
    if len(plans) < len(scenarios):
        raise ValueError("a scenario without a plan cannot be predicted")
    columns = _plan_facts(PlanColumns.of(plans))
    rows = [
        _workload_facts(s, device, PlanColumns.of([plan]))
        for s, device, plan in zip(scenarios, devices, plans, strict=True)
    ]
    keys = RowKeys(
        [d.generation for d in devices], [d.name for d in devices], [s.training.framework for s in scenarios]
    )
    if len(rows) == 1:
        facts = {name: number(float(value)) for name, value in rows[0].items()}
        return Inputs(**facts, **{name: column[0] for name, column in columns.items()}), keys
    facts = {name: np.array([row[name] for row in rows], dtype=np.float64) for name in rows[0]}
    return Inputs(**facts, **columns), keys


def encode_plans(scenario: Scenario, plans: PlanColumns) -> tuple[Inputs, RowKeys]:
    """Many plans of one scenario: scalars for the workload, arrays for the plans."""
    device = scenario_device(scenario.cluster)
    workload = _workload_facts(scenario, device, plans)
    scalars = {
        name: value if isinstance(value, np.ndarray) else number(value) for name, value in workload.items()
    }
    keys = RowKeys([device.generation], [device.name], [scenario.training.framework])
    return Inputs(**scalars, **_plan_facts(plans)), keys


def _plan_facts(plans: PlanColumns) -> dict[str, Array]:
    """Every field of a plan; a search leaves out what it does not try, which is then not stated (0)."""
    facts = {
        name: plans[name].astype(np.float64) if name in plans else number(0.0)
        for name, role in PLAN_ROLES.items()
        if name in plans or not role.is_searched
    }
    # one stage has one chunk, and without ZeRO there is no group
    facts["vpp"] = np.where(facts["pp"] > 1, facts["vpp"], 1.0)
    facts["dp_shard"] = np.where(facts["zero_stage"] > 0, facts["dp_shard"], 1.0)
    return facts


def scenario_device(cluster: ClusterSpec) -> Device:
    return get_device(cluster.device, cluster.overrides)


def _workload_facts(s: Scenario, device: Device, plans: PlanColumns) -> dict[str, float | Array]:
    """Everything but the plans; numbers, but for what recipes set and not every plan can run."""
    model = {**model_facts(s.model), **layer_facts(s.model, s.training.seq_len)}
    trainings, version = run_trainings(s, plans)
    (number, training), *others = trainings.items()
    facts: dict[str, float | Array] = {
        **model, **cluster_facts(s, device), **training_facts(s, training, device), "version": number
    }  # fmt: skip
    if not others:
        return facts
    tables = {name: np.full(max(trainings) + 1, facts[name]) for name in VERSION_FIELDS}
    for number, training in others:
        for name, value in training_facts(s, training, device).items():
            if name in tables:
                tables[name][number] = value
            elif value != facts[name]:
                raise AssertionError(f"{name} differs by version: it belongs to VERSION_FIELDS")
    return facts | {name: table[version] for name, table in tables.items()} | {"version": version * 1.0}


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
        "prediction_layers": m.num_nextn_layers,
        "prediction_heads": m.num_nextn_predict_layers,
        "repeated_layers": m.num_repeated_nextn_layers,
    }


def cluster_facts(s: Scenario, device: Device) -> dict[str, float]:
    precision = s.training.precision
    half = next(device.peak_flops[name] for name in ("bf16", "fp16", "fp32") if name in device.peak_flops)
    peak = device.peak_flops[precision]
    topology, usual = s.cluster.topology, FABRICS[device.traits.fabric]
    fabric = FABRICS[scenario_fabric(s)]
    card = device.inter_node_bytes_per_s / (topology.oversubscription if topology else 1.0)
    crossed, usual_card = crossed_fabric(s.cluster), get_device(device.name).inter_node_bytes_per_s
    torus = device.torus_dimensions
    sides = sorted(topology.torus_dimensions or (), reverse=True) if topology and torus else []
    if torus and not sides:  # a slice is as near to a cube as may be
        slice_size = min(scale_up_size(s.cluster, device), s.cluster.num_devices)
        sides = [slice_size ** (1.0 / torus)] * torus
    longest, middle, shortest = (*sides, *[1.0] * MAX_TORUS)[:MAX_TORUS]
    # share of its peak clock that a part with less power per FLOP/s than an H100 sustains
    power_share = min(1.0, device.power_w / half / POWER_OF_FULL_CLOCK) ** CLOCK_BY_POWER
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
        "scale_out_bandwidth": card,
        "scale_out_latency": device.inter_node_latency_s * fabric.latency / usual.latency,
        "fabric": fabric_code(crossed),
        "has_slow_network": float(crossed is not None and card <= SLOW_NETWORK * usual_card),
        "half_rate_bytes": 0.0 if device.collectives.is_flat else fabric.half_rate_bytes,
        "host_state": fabric.host_state / usual.host_state,
        "scale_up_size": scale_up_size(s.cluster, device),
        "torus_dimensions": torus,
        "torus_longest": longest,
        "torus_middle": middle,
        "torus_shortest": shortest,
        "scatter_passes": device.collectives.reduce_scatter_passes,
        "flat_rings": float(device.collectives.is_flat),
        "launch_s": device.launch_overhead_s,
        "exponentials_per_s": device.exponentials_per_s,
        "is_systolic": float(device.traits.is_systolic),
        "power_share": float(power_share),
    }


def training_facts(s: Scenario, t: TrainingSpec, device: Device) -> dict[str, float]:
    """Facts of the training that runs: as stated, and what the framework sets beside it."""
    fabric, traits = scenario_fabric(s), framework_traits(t.framework)
    is_fused = t.moe_dispatcher in FUSED_DISPATCHERS
    posted = "gpu" if fabric in TUNED_FABRICS else "host-proxy"
    stated = None if is_fused and t.moe_transport == "nccl" else t.moe_transport
    transport = stated or (posted if is_fused else "nccl")  # fused kernels post messages themselves
    is_fa2 = t.flash_attention and traits.attention_kernel == "fa2"
    value_bytes = 4.0 if t.precision == "fp32" else 2.0
    eighths = t.precision_scope.mxfp8 if t.precision_scope else ()
    targets = t.lora.targets if t.lora else ("attention", "mlp")
    held = held_bytes(t.framework, t.precision, t.optimizer_state, t.gradient_dtype)
    return {
        "seq": t.seq_len,
        "batch": t.global_batch_size,
        "gemm_bytes": GEMM_BYTES[t.precision],
        "value_bytes": value_bytes,
        "dispatch_bytes": GEMM_BYTES["mxfp8"] if "dispatch" in eighths else value_bytes,
        "flash": float(t.flash_attention),
        "trained_share": adapter_share(s.model, t.lora) if t.lora else 1.0,
        "stored_bytes": STORED_BYTES.get(t.lora.weight_bits if t.lora else 16, value_bytes),
        "trains_attention": float("attention" in targets),
        "trains_mlp": float("mlp" in targets),
        "offloads_optimizer": float(t.optimizer_offload),
        "host_link": device.traits.host_link_gbytes_per_s * 1e9,
        "capacity": t.capacity_factor or 0.0,
        "imbalance": t.expert_imbalance or (NATURAL_IMBALANCE if t.routing == "natural" else 1.0),
        "document_tokens": min(t.packed_mean_tokens or t.seq_len, t.seq_len),
        "offloaded_share": offloaded_share(t, s.model),
        "optimizer_bytes": OPTIMIZER_BYTES[t.optimizer_state or "fp32"],
        "is_compiled": float(t.compile or False),
        "head_layers": head_layers(s.model) if traits.balances_stages_by_cost else 0.0,
        "held_gradient_bytes": held.gradient,
        "held_optimizer_bytes": held.optimizer,
        "gradient_bytes": traits.gradient(t),
        "reduced_bytes": traits.reduced(t),
        "scatters_pipeline": float(traits.scatters_pipeline),
        "flat_from_stage": traits.flat_from_stage,
        "messages_per_layer": traits.messages_per_layer,
        "reduces_each": float(traits.reduces_every_micro_batch),
        "context_exchange": float(CONTEXT_EXCHANGES.index(traits.context_exchange)),
        "stops_early": float(traits.recompute_stops_early),
        "tensor_overlap": float(traits.overlaps_tensor_traffic(t)),
        "data_overlap": float(traits.overlaps_data_traffic(t)),
        "expert_overlap": float(bool(t.overlap_moe_communication)),
        "attention_kernel": (device.traits.flash_attention_2_share if is_fa2 else 1.0)
        * (EIGHT_BIT_ATTENTION if "core_attn" in eighths else 1.0),
        "selective_share": traits.selective_share,
        "kernels_per_layer": traits.kernels_per_layer * (1.0 if t.flash_attention else UNFUSED_KERNELS),
        "tensor_kernels": traits.tensor_kernels,
        "pipelined_tensor_kernels": traits.pipelined_tensor_kernels,
        "has_fused_dispatch": float(is_fused),
        "message_s": PROXY_MESSAGE_S * (transport == "host-proxy"),
        "gathers_tokens": float(t.moe_dispatcher == "allgather"),
        **scope_facts(t, s.model, device),
        **graph_facts(t, s.model),
        "fuses_loss": float(traits.has_fused_loss(t)),
    }


def head_layers(m: ModelSpec) -> float:
    """Cost of the output head in layers, as nanotron counts it (LlamaForTraining.get_block_compute_costs)."""
    layer = 4 * m.num_attention_heads * m.head_dim + 3 * (m.intermediate_size or m.moe_intermediate_size)
    return m.vocab_size / layer


def offloaded_share(t: TrainingSpec, m: ModelSpec) -> float:
    """Share of the layers whose activations go to the host and come back."""
    stated = t.activation_offload
    return float(stated) if isinstance(stated, bool) else min((stated or 0) / m.num_hidden_layers, 1.0)


def scope_facts(t: TrainingSpec, m: ModelSpec, device: Device) -> dict[str, float]:
    """Shares of the layers that keep a kind of product in 16 bits. A product kept in 8 bits beside 4 counts
    as the share that takes as long at the device's peaks."""
    scope = t.precision_scope
    if scope is None:
        return {**dict.fromkeys(WIDE_MODULES, 0.0), "wide_head": 1.0}
    peaks, predicting = device.peak_flops, m.num_nextn_layers
    own, half, eighth = (1.0 / peaks.get(name, peaks[t.precision]) for name in (t.precision, "bf16", "mxfp8"))
    between = (eighth - own) / (half - own) if half > own else 0.0
    layers = m.num_hidden_layers + predicting
    always = (scope.bf16_last_layers + predicting * ("mtp" in scope.bf16)) / layers
    shares = {
        name: 1.0 if module in scope.bf16 else max(min(always, 1.0), between * (module in scope.mxfp8))
        for name, module in WIDE_MODULES.items()
    }
    return {**shares, "wide_head": between if "lm_head" in scope.mxfp8 else 1.0}


def graph_facts(t: TrainingSpec, m: ModelSpec) -> dict[str, float]:
    """Whether the iteration is one graph, and the shares of launches that scoped graphs take over: of what
    every layer launches (half mixing, half feed-forward) and of what a layer with experts adds."""
    stated = t.cuda_graph_scopes
    scopes = DEFAULT_SCOPES[m.is_moe] if stated is None else frozenset[str](stated)
    layers, is_scoped = m.num_hidden_layers, t.cuda_graph == "scoped"
    parts = {
        "attn": m.num_attention_layers / layers / 2.0,
        "mamba": m.num_mixer_layers / layers / 2.0,
        "mlp": m.num_dense_layers / layers / 2.0,
    }
    graphed = sum((part for scope, part in parts.items() if scope in scopes), 0.0)
    experts = 1.0 if "moe" in scopes else sum((ROUTING_LAUNCHES.get(scope, 0.0) for scope in scopes), 0.0)
    return {
        "has_cuda_graph": float(t.cuda_graph == "full"),
        "graphed_layers": graphed * is_scoped,
        "graphed_experts": experts * is_scoped,
    }


def adapter_share(m: ModelSpec, lora: LoraSpec) -> float:
    """Parameters of the low-rank adapters over those of the model (Hu et al., arXiv 2106.09685)."""
    attention = 2 * m.hidden_size + m.head_dim * (2 * m.num_attention_heads + 2 * m.num_key_value_heads)
    attention += 2 * m.hidden_size
    mlp = (3 if m.gated_mlp else 2) * (m.hidden_size + (m.intermediate_size or m.moe_intermediate_size))
    widths = {"attention": attention, "mlp": mlp}
    adapters = lora.rank * m.num_hidden_layers * sum(widths[target] for target in lora.targets)
    # less than all even where adapters of a great rank outgrow a tiny model: its own weights stay frozen
    return min(adapters / count_parameters(m).total, 1.0 - 1e-9)
