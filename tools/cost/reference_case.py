"""What the reference cost model knows of one scenario: layers counted one at a time, sizes, rates, constants,
parameters of a rank.

Plain Python, written from docs/cost-model.md; shares no formula with the array model (see `reference.py`).
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

from tools.cost.calibration import Calibration
from tools.cost.constants import definitions
from tools.cost.traits import framework_traits
from tools.hardware import get_device
from tools.scenario.model import MixerSpec, ModelSpec
from tools.scenario.spec import Plan, Scenario


class Mixer(NamedTuple):
    """A token mixer: the shapes of its matrices, what else it has, and the FLOPs between its outer
    matrices."""

    columns: int
    rows: int
    inner: int
    small: int
    flops: float


class Layers(NamedTuple):
    """Averages over the layers of a model."""

    attention: float
    mixed: float
    dense: float
    norms: float
    weights: float
    """Of an average layer's attention, with indexers and compressors."""
    ratio: float
    """Those over what the plain formula counts."""
    index_flops: float
    compressed_keys: float
    sublayers: float
    """Attention, mixers and feed-forward parts that reduce over tensor ranks, without experts."""


def mixer_of(s: MixerSpec) -> Mixer:
    v, k, n, heads, conv, r = (
        s.inner_size, s.key_size, s.state_size, s.num_heads, s.conv_kernel, s.low_rank,
    )  # fmt: skip
    delta = 64 * (3 * heads * n + 2 * v) + 6 * n * v
    chunked = 256 * k + 256 * v + 4 * n * v
    if s.kind == "mamba":
        return Mixer(2 * v, v, v * (2 * r + 2 * n), v * (conv + n + 3), 9 * v * n + 2 * v * (2 * r + 2 * n))
    if s.kind == "mamba2":
        return Mixer(2 * (v + k) + heads, v, 0, (v + 2 * k) * (conv + 1) + 3 * heads + v, chunked)
    if s.kind == "gated_delta_net":
        small = conv * (v + 2 * k) + 2 * heads + v // heads
        return Mixer(2 * (k + v + heads), v, 0, small, delta)
    if s.kind == "kimi_delta_attention":
        small = conv * (v + 2 * k) + heads + k + v // heads
        forget_and_output = 2 * r if r else k + v
        return Mixer(2 * k + v + heads + forget_and_output, v, r * (k + v), small, delta + 2 * r * (k + v))
    if s.kind == "linear_attention":
        return Mixer(2 * (k + v), v, 0, v, chunked)
    if s.kind == "short_conv":
        return Mixer(3 * v, v, 0, v * conv, 2 * v * conv + 4 * v)
    gates = 2 * v * v // heads
    return Mixer(2 * v, v, gates, v * (conv + 4), 10 * v + 2 * gates)


def attention_matrices(m: ModelSpec, sliding: bool) -> int:
    """Elements of the matrices of one attention layer."""
    heads = (sliding and m.sliding_num_attention_heads) or m.num_attention_heads
    groups = (sliding and m.sliding_num_key_value_heads) or m.num_key_value_heads
    dim = (sliding and m.sliding_head_dim) or m.head_dim
    h, rank = m.hidden_size, m.q_lora_rank
    if m.kv_lora_rank:
        dim = m.qk_nope_head_dim + m.qk_rope_head_dim
    out = m.v_head_dim or dim
    queries = heads * dim * (1 + m.attn_output_gate)
    shapes = [(h, rank), (rank, queries)] if rank else [(h, queries)]
    if m.kv_lora_rank:
        up = heads * (m.qk_nope_head_dim + out)
        shapes += [(h, m.kv_lora_rank), (h, m.qk_rope_head_dim), (m.kv_lora_rank, up)]
    elif m.o_groups:
        shapes += [(h, groups * dim)]
    else:
        shapes += [(h, groups * dim), (h, groups * out)]
    if m.o_groups:
        shapes += [(heads * dim // m.o_groups, m.o_groups * m.o_lora_rank), (m.o_groups * m.o_lora_rank, h)]
    else:
        shapes.append((heads * out, h))
    return sum(rows * columns for rows, columns in shapes)


def layers_of(m: ModelSpec, seq_len: int) -> Layers:
    count, h = m.num_hidden_layers, m.hidden_size
    kinds = m.layer_types or ("attention",) * count
    attending = [i for i, kind in enumerate(kinds) if kind in ("attention", "parallel")]
    sliding = min(m.num_sliding_layers, len(attending))
    total = sum(attention_matrices(m, position < sliding) for position in range(len(attending)))
    scored = read = 0.0
    query_from = m.q_lora_rank or h
    indexed = m.num_index_layers or len(attending)
    if m.index_n_heads and not m.compress_ratios:
        heads, dim = m.index_n_heads, m.index_head_dim
        total += indexed * (query_from * heads * dim + h * dim + h * heads)
        scored = heads * dim * seq_len * indexed
    for ratio in m.compress_ratios[:count]:
        if not ratio:
            continue
        keys, per_head = seq_len / ratio / 2, 2 * h + ratio
        if ratio > 16:
            total, read = total + per_head * m.head_dim, read + keys
            continue
        total += 2 * per_head * (m.head_dim + m.index_head_dim)
        if m.index_n_heads:
            total += m.index_n_heads * (query_from * m.index_head_dim + h)
            scored += 2 * m.index_n_heads * m.index_head_dim * keys
        read += min(keys, m.index_topk or keys)
    mixing = count - kinds.count("none")
    fed = m.ffn_types or ("moe",) * count
    dense_and_moe = m.num_dense_layers + m.num_moe_layers
    plain = attention_matrices(m.model_copy(update=_PLAIN), False)
    if not m.kv_lora_rank:
        plain = attention_matrices(m.model_copy(update={**_PLAIN, "q_lora_rank": 0}), False)
    attention = len(attending)
    return Layers(
        attention=attention / count,
        mixed=(len([k for k in kinds if k in ("mixer", "parallel")])) / count,
        dense=dense_and_moe / count - 1,
        norms=(mixing + count - fed.count("none")) / count,
        weights=total / count,
        ratio=total / (plain * attention) if attention else 1.0,
        index_flops=scored / attention if attention else 0.0,
        compressed_keys=read / len(m.compress_ratios[:count]) if m.compress_ratios else 0.0,
        sublayers=mixing / count + dense_and_moe / count,
    )


_PLAIN = {"attn_output_gate": False, "o_groups": 0}


WATTS_PER_TFLOPS = 0.7


class ReferenceCase:
    """One scenario under one recomputation; symbols as in docs/cost-model.md."""

    def __init__(
        self, s: Scenario, plan: Plan, recompute: str, layers: int | None, calibration: Calibration
    ) -> None:
        """With full recomputation of `layers` layers per stage, None being all."""
        self.model, self.training, self.cluster, self.plan = s.model, s.training, s.cluster, plan
        self.device = get_device(s.cluster.device, s.cluster.overrides)
        self.recompute = recompute
        m, t = s.model, s.training
        self.traits = framework_traits(t.framework)
        self.c = self._coefficients(t.framework, calibration)
        measured = calibration.cluster
        self.measured = measured if measured and measured.device == self.device.name else None
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
        self.trained = self._adapter_share() if t.lora else 1.0
        bits = t.lora.weight_bits if t.lora else 16
        self.stored = {4: 4.127 / 8, 8: 1.0}.get(bits, float(self.b))
        self.reduced_bytes = self.traits.reduced(t.precision)
        self.dispatcher = self.traits.dispatcher(t)
        # cluster
        peaks = self.device.peak_flops
        self.peak = peaks[t.precision]
        half = next(peaks[name] for name in ("bf16", "fp16", "fp32") if name in peaks)
        self.peak_16 = self.peak if t.precision == "fp32" else half
        self.power = float(min(1.0, self.device.power_w / (half / 1e12) / WATTS_PER_TFLOPS) ** (1 / 3))
        self.bandwidth = self.device.memory_bandwidth_bytes_per_s
        topology = s.cluster.topology
        sides = topology.torus_dimensions if topology else None
        self.torus = self.device.torus_dimensions
        if sides and self.torus:
            self.torus = len([side for side in sides if side > 1])
        self.domain = self._scale_up_size()
        self.fast_rate = self.device.intra_node_bytes_per_s * self.c["fast_link_efficiency"]
        oversubscription = topology.oversubscription if topology else 1.0
        self.card_rate = self.device.inter_node_bytes_per_s / oversubscription
        self.slow_rate = self.card_rate * self.c["slow_link_efficiency"]
        # layers of an inner stage and of the last, and the share of them that have experts
        staged = self.layers + m.num_nextn_predict_layers
        self.inner = math.ceil(staged / plan.pp)
        self.last = max(staged - self.inner * (plan.pp - 1), 1)
        leading = m.first_k_dense_replace if m.is_moe and plan.pp > 1 else 0
        self.moe = m.num_moe_layers / max(self.layers - leading, 1)
        self.dense = 1 - self.moe + self.kinds.dense
        # what backward repeats: a share of each stage's layers, or the modules that are named
        self.repeated_share = 0.0
        if recompute == "full":
            self.repeated_share = min((layers or self.inner) / self.inner, 1.0)
        stated = plan.recompute_modules if recompute == "selective" else None
        self.modules = None if stated is None else frozenset(stated)

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

    def measured_factor(self) -> float:
        """On every term of the step: what runs of this cluster show beyond its constants."""
        if self.measured is None:
            return 1.0
        m, p, t, prior = self.model, self.plan, self.training, self.measured.prior
        job = (m.hidden_size, m.num_hidden_layers, t.seq_len, t.global_batch_size, self.cluster.num_devices)
        degrees = (p.micro_batch_size, p.tp, p.pp, p.cp, p.ep)
        stage = p.zero_stage if p.dp_shard > 1 else 0
        own = [*map(math.log2, job + degrees), stage, float(m.is_moe), math.log2(self.operand)]
        lengths, shift = list(prior.lengths.values()), 0.0
        for weight, shared, run in zip(
            self.measured.weights, self.measured.shared, self.measured.features, strict=True
        ):
            apart = sum(abs(a - b) / length for a, b, length in zip(own, run, lengths, strict=True))
            shift += weight * shared * (prior.offset**2 + prior.likeness**2 * math.exp(-apart))
        return math.exp(shift)

    def _scale_up_size(self) -> float:
        topology, device = self.cluster.topology, self.device
        if topology and topology.nvlink_domain_size:
            return topology.nvlink_domain_size
        if topology and topology.torus_dimensions:
            return math.prod(topology.torus_dimensions)
        if device.fast_domain_devices > device.devices_per_node:
            return device.fast_domain_devices
        return min(device.fast_domain_devices, self.cluster.devices_per_node)

    def _adapter_share(self) -> float:
        """Parameters of LoRA's adapters, rank * (rows + columns) of each matrix, over the model's."""
        m, h, lora = self.model, self.h, self.training.lora
        if lora is None:
            return 1.0
        queries, keys = m.head_dim * m.num_attention_heads, m.head_dim * m.num_key_value_heads
        width = m.intermediate_size or m.moe_intermediate_size
        sides = {
            "attention": 2 * (h + queries) + 2 * (h + keys),
            "mlp": (self.up + 1) * (h + width),
        }
        adapters = lora.rank * self.layers * sum(sides[target] for target in lora.targets)
        return adapters / self._model_parameters()

    def _model_parameters(self) -> float:
        """Of the whole model, without layers of multi-token prediction."""
        m, h, matrices = self.model, self.h, self.up + 1
        total = float((1 if m.tie_word_embeddings else 2) * m.vocab_size * h + h + m.other_parameters)
        total += self.layers * (self.kinds.weights + self.kinds.norms * h)
        if self.latent or m.o_groups:  # norms of the latents
            total += self.layers * self.kinds.attention * (m.q_lora_rank + m.kv_lora_rank)
        if self.mixer:
            mixer = h * (self.mixer.columns + self.mixer.rows) + self.mixer.inner + self.mixer.small
            total += self.layers * self.kinds.mixed * mixer
        experts = m.num_experts * (h + matrices * self.expert_h * m.moe_intermediate_size)
        shared = matrices * h * round(self.shared) + 2 * h * m.moe_latent_size
        total += m.num_dense_layers * matrices * h * m.intermediate_size
        return total + m.num_moe_layers * (experts + shared)

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
