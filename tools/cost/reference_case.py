"""What the reference cost model knows of one scenario, and the memory that its plan needs.

Plain Python, written from docs/cost-model.md; shares no formula with the array model (see `reference.py`).
"""

import math
import tomllib
from collections.abc import Mapping
from functools import cache

import kb_seed
from tools.cost.calibration import Calibration
from tools.cost.constants import definitions
from tools.cost.reference_layers import layers_of, mixer_of
from tools.hardware import get_device
from tools.scenario.spec import Plan, Scenario


@cache
def _memory_table() -> dict[str, dict[str, float | dict[str, float]]]:
    return tomllib.loads(kb_seed.folder("calibration").joinpath("memory.toml").read_text())


class ReferenceCase:
    """One scenario under one recomputation; symbols as in docs/cost-model.md."""

    def __init__(self, s: Scenario, plan: Plan, recompute: str, calibration: Calibration) -> None:
        self.model, self.training, self.cluster, self.plan = s.model, s.training, s.cluster, plan
        self.device = get_device(s.cluster.device, s.cluster.overrides)
        self.recompute = recompute
        m, t = s.model, s.training
        framework = t.framework if t.flash_attention else f"{t.framework} before flash"
        self.c = self._coefficients(framework, calibration)
        table = _memory_table()
        entries = {**table["default"], **table.get(framework, {})}
        self.keep = {
            k: v.get(t.precision, v["default"]) if isinstance(v, dict) else v for k, v in entries.items()
        }
        # model
        self.h, self.heads, self.layers = m.hidden_size, m.num_attention_heads, m.num_hidden_layers
        self.latent = m.kv_lora_rank > 0
        self.kv_heads = self.heads if self.latent else m.num_key_value_heads
        self.d_qk = m.qk_nope_head_dim + m.qk_rope_head_dim if self.latent else m.head_dim
        self.d_v = m.v_head_dim or m.head_dim
        self.kinds = layers_of(m, t.seq_len)
        self.mixer = mixer_of(m.mixer) if m.mixer else None
        self.expert_h = m.moe_latent_size or m.hidden_size
        self.up = 2 if m.gated_mlp else 1
        self.shared = m.shared_expert_intermediate_size or m.num_shared_experts * m.moe_intermediate_size
        # plan and training
        self.vpp = plan.vpp if plan.pp > 1 else 1
        self.shard = plan.dp_shard if plan.zero_stage else 1
        self.tokens = plan.micro_batch_size * t.seq_len / plan.cp
        self.micro_batches = t.global_batch_size / (plan.dp * plan.micro_batch_size)
        self.split = plan.tp if plan.sequence_parallel else 1
        self.b = 4 if t.precision == "fp32" else 2
        scaled = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "mxfp8": 33 / 32, "nvfp4": 9 / 16, "int8": 1}
        self.operand = scaled[t.precision]
        # cluster
        peaks = self.device.peak_flops
        self.peak = peaks[t.precision]
        self.peak_16 = (
            self.peak
            if t.precision == "fp32"
            else next(peaks[name] for name in ("bf16", "fp16", "fp32") if name in peaks)
        )
        self.bandwidth = self.device.memory_bandwidth_bytes_per_s
        topology = s.cluster.topology
        sides = topology.torus_dimensions if topology else None
        self.torus = self.device.torus_dimensions
        if sides and self.torus:
            self.torus = len([side for side in sides if side > 1])
        self.domain = self._scale_up_size()
        self.fast_rate = self.device.intra_node_bytes_per_s * self.c["fast_link_efficiency"]
        oversubscription = topology.oversubscription if topology else 1.0
        self.slow_rate = (
            self.device.inter_node_bytes_per_s / oversubscription * self.c["slow_link_efficiency"]
        )
        # layers of an inner stage and of the last, and the share of them that have experts
        self.inner = math.ceil(self.layers / plan.pp)
        self.last = max(self.layers - self.inner * (plan.pp - 1), 1)
        leading = m.first_k_dense_replace if m.is_moe and plan.pp > 1 else 0
        self.moe = m.num_moe_layers / max(self.layers - leading, 1)
        self.dense = 1 - self.moe + self.kinds.dense

    def _coefficients(self, framework: str, calibration: Calibration) -> dict[str, float]:
        keys = {
            "everywhere": "all",
            "generation": self.device.generation,
            "device": self.device.name,
            "framework": framework,
            "stack": f"{framework}/{self.device.generation}",
        }
        values = {}
        for d in definitions():
            shifts: Mapping[str, Mapping[str, float]] = calibration.shifts.get(d.name, {})
            value = d.prior
            for level, key in keys.items():
                value *= d.prior_factors.get(f"{level}:{key}", 1.0) * math.exp(
                    shifts.get(level, {}).get(key, 0.0)
                )
            values[d.name] = min(max(value, d.low), d.high)
        return values

    def _scale_up_size(self) -> float:
        topology, device = self.cluster.topology, self.device
        if topology and topology.nvlink_domain_size:
            return topology.nvlink_domain_size
        if topology and topology.torus_dimensions:
            return math.prod(topology.torus_dimensions)
        if device.fast_domain_devices > device.devices_per_node:
            return device.fast_domain_devices
        return min(device.fast_domain_devices, self.cluster.devices_per_node)

    @property
    def dense_shards(self) -> float:
        return min(self.shard, self.plan.dp * self.plan.cp)

    @property
    def expert_ranks(self) -> float:
        p = self.plan
        return max(p.dp * p.cp * p.tp / (p.ep * p.etp), 1.0)

    @property
    def expert_shards(self) -> float:
        p = self.plan
        return min(max(self.shard * p.tp / (p.ep * p.etp), 1.0), self.expert_ranks)

    def layer_parameters(self) -> tuple[float, float]:
        """Of an average layer on one rank, experts apart."""
        m, p, h = self.model, self.plan, self.h
        split = self.kinds.weights + m.other_parameters / self.layers
        if self.mixer:
            matrices = h * (self.mixer.columns + self.mixer.rows)
            split += self.kinds.mixed * (matrices + self.mixer.inner + self.mixer.small)
        split += h * (self.up + 1) * (self.dense * m.intermediate_size + self.moe * self.shared)
        split += self.moe * 2 * h * m.moe_latent_size
        dense = split / p.tp + self.moe * h * m.num_experts + self.kinds.norms * h
        expert = self.moe * m.num_experts * self.expert_h * m.moe_intermediate_size * (self.up + 1)
        expert /= p.ep * p.etp
        return dense, expert

    def parameters(self, layers: int) -> tuple[float, float]:
        """Of a stage on one rank: one vocabulary matrix at the ends of a pipeline, else both unless tied."""
        dense, expert = self.layer_parameters()
        matrices = 1 if self.plan.pp > 1 or self.model.tie_word_embeddings else 2
        return dense * layers + matrices * self.model.vocab_size * self.h / self.plan.tp, expert * layers

    def memory(self) -> dict[str, float]:
        """Bytes on the fuller of the first stage and the last."""
        p, k, m = self.plan, self.keep, self.micro_batches
        piped = p.pp > 1
        deep = (2 * (p.pp - 1) + (self.vpp - 1) * p.pp + 1) / self.vpp if self.vpp > 1 else p.pp
        warmed_up = ((self.vpp - 1) * p.pp + 1) / self.vpp
        if p.schedule == "gpipe":
            deep = warmed_up = m
        first = self._stage_memory(self.inner, min(deep, m) if piped else 1.0, logits=not piped)
        last = self._stage_memory(self.last, min(warmed_up, m) if piped else min(1.0, m), logits=True)
        fuller = first if sum(first.values()) >= sum(last.values()) else last
        if p.zero_stage == 3:
            gathered = sum(self.layer_parameters()) * k["gathered_layers"]
            matrix = self.model.vocab_size * self.h / p.tp
            fuller["buffers"] += (gathered + matrix) * self.b * k["fragmentation_ratio"]
        return {**fuller, "runtime": k["runtime_bytes"]}

    def _stage_memory(self, layers: int, in_flight: float, logits: bool) -> dict[str, float]:
        p, k = self.plan, self.keep
        dense, expert = self.parameters(layers)
        whole, sharded = dense + expert, dense / self.dense_shards + expert / self.expert_shards
        kept, everything = self._layer_activations()
        hidden = self.tokens * self.h * self.b
        received = (hidden if p.tp > 1 else 0.0) + (
            self.model.num_experts_per_tok / p.tp * hidden if p.ep > 1 else 0.0
        )
        scores = self.tokens * self.model.vocab_size / p.tp * k["logits_bytes"] if logits else 0.0
        working = everything if self.recompute != "none" else 0.0
        return {
            "parameters": (sharded if p.zero_stage >= 3 else whole) * k["parameter_bytes"],
            "gradients": (sharded if p.zero_stage >= k["gradients_sharded_from"] else whole)
            * k["gradient_bytes"],
            "optimizer": sharded * k["optimizer_bytes"],
            "activations": layers * kept * in_flight * k["fragmentation_ratio"],
            "buffers": (max(scores, working) + k["buffer_copies"] * received) * k["fragmentation_ratio"],
        }

    def _layer_activations(self) -> tuple[float, float]:
        """Bytes of one layer and micro-batch that are kept for backward, and all that it computes."""
        m, p, k = self.model, self.plan, self.keep
        narrow = min(self.b, self.operand)
        split = p.tp if k["residual_split"] else self.split
        hidden = (k["hidden_kept"] * self.b + k["hidden_cast_kept"] * narrow) * self.h / split
        qkv = self.heads * self.d_qk + self.kv_heads * (self.d_qk + self.d_v)
        attention = (qkv * self.b + self.heads * self.d_v * (self.b + narrow)) / p.tp * self.kinds.attention
        if self.mixer:
            kept = self.mixer.columns * self.b + self.mixer.rows * (self.b + narrow)
            attention += self.kinds.mixed * kept / p.tp
        width = self.dense * m.intermediate_size + self.moe * self.shared
        inner = self.up * self.b + narrow
        routed = inner * m.moe_intermediate_size + k["routed_kept"] * narrow * self.expert_h
        routed *= self.moe * m.num_experts_per_tok
        scores = (
            0.0
            if self.training.flash_attention
            else 5 * self.tokens * self.heads / p.tp * self.training.seq_len * self.kinds.attention
        )
        everything = self.tokens * (hidden + attention + (width * inner + routed) / p.tp) + scores
        inputs = self.tokens * self.h * self.b / split
        if self.recompute == "none":
            return everything * k["none_kept"], everything
        if self.recompute == "full":
            return inputs, everything
        if not self.training.flash_attention:
            return everything - scores, everything
        return inputs * k["input_kept"] + (everything - inputs) * k["selective_kept"], everything
