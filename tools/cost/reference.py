"""The cost model a second time: plain Python for one scenario, written from docs/cost-model.md.

Shares no formula with the array model (only data files and the catalogue), so that recomputing a prediction
with it is a check and not a repetition. Property tests hold the two together within 1e-9.
"""

import math
from typing import NamedTuple

from tools.cost.calibration import Calibration, shipped_calibration
from tools.cost.reference_case import ReferenceCase
from tools.cost.reference_layers import Mixer
from tools.scenario.spec import Scenario

GIB = 2.0**30


class ReferencePrediction(NamedTuple):
    """Seconds by term of the step and GiB by part of the memory; each sums to its total."""

    breakdown_s: dict[str, float]
    memory_gib: dict[str, float]


def reference_prediction(scenario: Scenario, calibration: Calibration | None = None) -> ReferencePrediction:
    """Step time and peak memory by their parts; `recompute` None is resolved by what fits."""
    plan = scenario.plan
    if plan is None:
        raise ValueError("a scenario without a plan cannot be predicted")
    calibration = calibration or shipped_calibration()
    for recompute in (plan.recompute,) if plan.recompute else ("none", "selective", "full"):
        model = _Step(scenario, plan, recompute, calibration)
        memory = model.memory()
        if sum(memory.values()) <= model.device.memory_bytes:
            break
    return ReferencePrediction(model.step(), {name: size / GIB for name, size in memory.items()})


class Pass(NamedTuple):
    """Seconds of arithmetic and of memory-bound work, forward and backward."""

    forward: float = 0.0
    backward: float = 0.0
    moved_forward: float = 0.0
    moved_backward: float = 0.0


class Stage(NamedTuple):
    """Seconds of one micro-batch on one pipeline stage."""

    compute: float
    moved: float
    tp: float
    cp: float
    ep: float
    pp: float
    host: float

    @property
    def on_device(self) -> float:
        return self.compute + self.moved + self.tp + self.cp + self.ep + self.pp


class Group(NamedTuple):
    """A communication group of `size` ranks, `inside` of them in one scale-up domain."""

    size: float
    inside: float
    links: float  # share of the scale-up bandwidth that it can use

    @property
    def domains(self) -> float:
        return self.size / self.inside


def _add(*passes: tuple[float, Pass]) -> Pass:
    return Pass(*(sum(share * part[i] for share, part in passes) for i in range(4)))


def _not_hidden(sent: float, window: float, cost: float) -> float:
    return max(sent - window, 0.0) + cost * min(sent, window)


class _Step(ReferenceCase):
    """The time of a step: kernels, layers, messages, stages."""

    # One kernel

    def gemm(self, m: float, n: float, k: float, low: bool = True) -> float:
        d, c = self.device, self.c
        gains = {1: c["fp8_gain"], 33 / 32: c["mxfp8_gain"], 9 / 16: c["fp4_gain"]}
        gain = gains.get(self.operand, 1.0) if low else 1.0
        peak = self.peak if low else self.peak_16
        if self.torus:
            inner = float(math.ceil(k / d.tile_n) * d.tile_n)
            padding = math.ceil(n / d.tile_n) * d.tile_n * inner / max(n * k, 1)
        else:
            inner = k
            waves = math.ceil(math.ceil(m / d.tile_m) * math.ceil(n / d.tile_n) / d.compute_units)
            padded = waves * d.compute_units * d.tile_m * d.tile_n / max(m * n, 1)
            padding = 1 + c["gemm_wave_weight"] * (min(max(padded, 1), 4) - 1)
        depth = 1 + c["gemm_depth_half"] / max(inner, 1)
        operands = (m * k + k * n) * (self.operand if low else self.b)
        arithmetic = 2 * m * n * k * padding * depth / (peak * c["gemm_efficiency"] * gain)
        return arithmetic + (operands + m * n * self.b) / self.bandwidth

    def linear(self, m: float, n: float, k: float, low: bool = True) -> Pass:
        return Pass(self.gemm(m, n, k, low), self.gemm(m, k, n, low) + self.gemm(n, k, m, low))

    def traffic(self, elements: float, cast: float) -> Pass:
        """Memory-bound work, twice as much backward, and the casts of low precision."""
        base = elements * self.b * self.c["elementwise_traffic"] / self.bandwidth
        casts = cast * 4 * self.c["cast_traffic"] / self.bandwidth if self.operand < 2 else 0.0
        return Pass(0.0, 0.0, base + casts, 2 * base + casts)

    def attention_core(self) -> tuple[float, float]:
        m, t = self.model, self.training
        keys = float(t.seq_len)
        if t.flash_attention:
            keys /= 2
            # sparse attention reads the best keys: a window of as many on every layer
            best = 0 if m.compress_ratios else m.index_topk
            if window := min(m.sliding_window or best, t.seq_len):
                attending = self.kinds.attention * self.layers
                share = min(m.num_sliding_layers / max(attending, 1), 1) if m.sliding_window else 1
                keys += share * (window - window**2 / (2 * t.seq_len) - keys)
            keys += self.kinds.compressed_keys
        scores = self.tokens * self.heads / self.plan.tp * keys
        width = (self.d_qk + self.d_v) / 2
        reached = self.c["attention_efficiency"] * width / (width + self.c["attention_head_dim_half"])
        forward = 4 * scores * width / (self.peak_16 * reached)
        forward += self.tokens / self.plan.tp * self.kinds.index_flops / (self.peak_16 * reached)
        if t.flash_attention:
            return forward, forward * 2.5 / 0.85
        passes = scores * self.b * self.c["attention_score_passes"] / self.bandwidth
        return forward + passes, 2 * forward + passes

    # One layer

    def attention(self) -> Pass:
        m, tp, h = self.model, self.plan.tp, self.h
        q, kv, out = self.heads * self.d_qk, self.kv_heads * (self.d_qk + self.d_v), self.heads * self.d_v
        shapes: list[tuple[float, float]] = [(h, out / tp)]
        if self.latent:
            up = self.heads * (m.qk_nope_head_dim + self.d_v)
            shapes += [(m.kv_lora_rank + m.qk_rope_head_dim, h), (up / tp, m.kv_lora_rank)]
            shapes += [(m.q_lora_rank, h), (q / tp, m.q_lora_rank)] if m.q_lora_rank else [(q / tp, h)]
        else:
            shapes.append(((q + kv) / tp, h))
        products = [(self.kinds.ratio, self.linear(self.tokens, n, k)) for n, k in shapes]
        qkv = (q + out + kv) / tp
        moved = self.traffic(
            self.tokens * (5 * h / self.split + 2 * qkv), self.tokens * (h / self.split + qkv)
        )
        return _add(*products, (1.0, Pass(*self.attention_core())), (1.0, moved))

    def other_mixer(self, mixer: Mixer) -> Pass:
        tp, hidden = self.plan.tp, self.h / self.split
        into = self.linear(self.tokens, mixer.columns / tp, self.h)
        out = self.linear(self.tokens, self.h, mixer.rows / tp)
        core = self.tokens / tp * mixer.flops / (self.peak_16 * self.c["attention_efficiency"])
        width = (mixer.columns + mixer.rows) / tp
        moved = self.traffic(self.tokens * (5 * hidden + 3 * width), self.tokens * (hidden + mixer.rows / tp))
        return _add((1.0, into), (1.0, out), (1.0, Pass(core, core * 2.5 / 0.85)), (1.0, moved))

    def mlp(self, width: float) -> Pass:
        local, hidden = width / self.plan.tp, self.h / self.split
        up = self.linear(self.tokens, local * self.up, self.h)
        down = self.linear(self.tokens, self.h, local)
        moved = self.traffic(
            self.tokens * (5 * hidden + (self.up + 1) * local), self.tokens * (hidden + local)
        )
        return _add((1.0, up), (1.0, down), (1.0, moved))

    def experts(self) -> Pass:
        m, p = self.model, self.plan
        held, width = max(m.num_experts / p.ep, 1), m.moe_intermediate_size / p.etp
        rows = self.tokens * m.num_experts_per_tok / p.tp * p.etp
        ratio = self.c["grouped_gemm_ratio"]
        ratio *= self.c["grouped_low_precision_ratio"] if self.operand < 2 else 1.0
        up = self.linear(rows / held, width * self.up, self.expert_h)
        down = self.linear(rows / held, self.expert_h, width)
        permuted = rows * self.expert_h * 4 * self.c["routing_traffic"]
        elements = permuted + rows * (self.up + 1) * width + self.tokens * 5 * self.h / self.split
        moved = self.traffic(elements, rows * (self.expert_h + width))
        shared = self.mlp(self.shared) if self.shared else Pass()
        parts = [(held / ratio, up), (held / ratio, down), (1.0, moved), (1.0, shared)]
        if self.expert_h < self.h:
            narrow = self.expert_h / p.tp
            parts += [(1.0, self.linear(self.tokens, narrow, self.h))]
            parts += [(1.0, self.linear(self.tokens, self.h, narrow))]
        return _add(*parts)

    # One message

    def group(self, size: float, stride: float, domain: float | None = None) -> Group:
        inside = min(max(math.floor((domain or self.domain) / stride), 1), size)
        links = 1.0
        if self.torus:
            side = max(min(self.domain, self.cluster.num_devices), 2) ** (1 / self.torus)
            axes = math.ceil(math.log(max(inside, 2)) / math.log(max(side, 2)) - 1e-9)
            links = min(axes / self.torus, 1.0)
        return Group(size, inside, links)

    def gather(self, g: Group, message: float) -> tuple[float, float]:
        """Seconds of transfer and of latency."""
        if g.size <= 1:
            return 0.0, 0.0
        ring = g.size if self.device.collectives.is_flat else g.domains
        slow = message * (ring - 1) / ring / (g.inside * self.slow_rate) if g.domains > 1 else 0.0
        fast = message * (g.size - 1) / g.size / (self.fast_rate * g.links)
        hop = self.device.intra_node_latency_s
        latency = hop * (g.inside - 1) + max(self.c["rank_latency_s"], hop) * (g.size - g.inside)
        return max(fast, slow), latency

    def all_to_all(self, g: Group, sent: float, copies: int) -> float:
        if g.size <= 1:
            return 0.0
        fast = sent * (g.size - 1) / g.size / (self.fast_rate * g.links)
        once = sent / copies * g.domains * (1 - (1 - 1 / g.domains) ** copies)
        crossing = (sent if self.device.collectives.is_flat else once) * (g.domains - 1) / g.domains
        latency = self.device.intra_node_latency_s * math.log2(g.size)
        latency += self.device.inter_node_latency_s if g.domains > 1 else 0.0
        return fast + crossing / self.slow_rate + latency

    def next_rank(self, g: Group, message: float) -> float:
        if g.size <= 1:
            return 0.0
        if g.domains > 1:
            cards = g.inside if self.device.collectives.is_flat else 1
            return message / (cards * self.slow_rate) + self.device.inter_node_latency_s
        return message / (self.fast_rate * g.links) + self.device.intra_node_latency_s

    def pipeline_group(self) -> Group:
        p = self.plan
        return self.group(p.pp, p.tp * p.cp * p.dp)

    # What is sent

    def tensor(self) -> float:
        scatter = self.device.collectives.reduce_scatter_passes if self.plan.sequence_parallel else 1.0
        return (1 + scatter) * sum(self.gather(self.group(self.plan.tp, 1), self.tokens * self.h * self.b))

    def context(self, window: float) -> float:
        p = self.plan
        if p.cp == 1:
            return 0.0
        block = self.tokens * max(self.kv_heads / p.tp, 1) * (self.d_qk + self.d_v) * self.b
        ring = 3 * (p.cp - 1) * self.next_rank(self.group(p.cp, p.tp), block)
        outputs, queries = self.heads * self.d_v, self.heads * self.d_qk
        merged = 8 * self.tokens * (outputs + queries + self.kv_heads * (self.d_qk + self.d_v)) / p.tp
        return _not_hidden(ring, window, self.c["cp_exposed"]) + p.cp * merged / self.bandwidth

    def mixer_exchange(self) -> float:
        """Heads for tokens and back, forward and backward."""
        if not self.mixer:
            return 0.0
        p, width = self.plan, self.mixer.columns + self.mixer.rows
        sent = self.tokens * width / p.tp * self.b
        return self.kinds.mixed * 2 * self.all_to_all(self.group(p.cp, p.tp), sent, 1)

    def expert_exchange(self) -> float:
        p, copies = self.plan, self.model.num_experts_per_tok
        routed = self.tokens / p.tp * copies * self.expert_h * self.b
        inner = sum(self.gather(self.group(p.etp, 1), routed * p.etp))
        return 4 * (self.all_to_all(self.group(p.ep, p.etp), routed, copies) + inner)

    def data(
        self, parameters: float, ranks: float, stride: float, shards: float
    ) -> tuple[float, float, float]:
        """Seconds in each micro-batch, at the end of the step, and of latency in the whole step."""
        if not parameters:
            return 0.0, 0.0, 0.0
        p, domain = self.plan, self.domain
        if self.torus and 1 < self.shard < p.dp * p.cp:  # hybrid sharding: a slice per replica
            domain = min(domain, p.tp * p.pp * self.shard)
        message = parameters / self.inner * self.b
        sent, wait = self.gather(self.group(shards, stride, domain), message)
        joined, joined_wait = self.gather(
            self.group(ranks / shards, stride * shards, domain), message / shards
        )
        scatter = self.device.collectives.reduce_scatter_passes
        each, end = {3: (2 + scatter, 0.0), 2: (scatter, 1.0)}.get(p.zero_stage, (0.0, 1 + scatter))
        latency = (each * self.micro_batches + end) * wait + 2 * joined_wait
        return self.inner * each * sent, self.inner * (end * sent + 2 * joined), self.inner * latency

    # One stage, one step

    def stage(self, layers: int, head: bool) -> Stage:
        c, p, m = self.c, self.plan, self.model
        full = self.recompute == "full"
        core = self.attention_core()[0]
        parts = [(self.kinds.attention, self.attention()), (self.dense, self.mlp(m.intermediate_size))]
        parts += [(self.kinds.mixed, self.other_mixer(self.mixer))] if self.mixer else []
        parts += [(self.moe, self.experts())] if m.num_moe_layers else []
        layer = _add(*parts)
        again = float(full)
        if self.recompute == "selective":
            fused, forward = self.training.flash_attention, layer.forward + layer.moved_forward
            again = c["selective_recompute"] if fused else core * self.kinds.attention / forward
        compute = layers * (layer.forward * (1 + again) + layer.backward)
        moved = layers * (layer.moved_forward * (1 + again) + layer.moved_backward)
        reduces = layers * (self.kinds.sublayers - self.moe) * (3 if full else 2) + head
        kernels = 60 * (1 + 0.4 * again)
        if m.num_moe_layers:
            kernels += self.moe * (c["host_moe_kernels"] + c["host_expert_kernels"] * m.num_experts / p.ep)
        exchanges = self.moe * self.expert_exchange() * (1.5 if full else 1.0) if m.num_moe_layers else 0.0
        if head:
            logits = self.tokens * m.vocab_size / p.tp
            product = self.linear(self.tokens, m.vocab_size / p.tp, self.h, low=False)
            compute += product.forward + product.backward
            moved += 2 * logits * 4 * 3 * c["loss_traffic"] / self.bandwidth
        hop = self.next_rank(self.pipeline_group(), self.tokens * self.h * self.b / self.split)
        stage = Stage(
            compute=compute,
            moved=moved,
            tp=self.tensor() * reduces * c["tp_exposed"],
            cp=layers * (self.kinds.attention * self.context(core * 3.5) + self.mixer_exchange()),
            ep=layers * exchanges * c["ep_exposed"],
            pp=2 * self.vpp * hop * c["pp_exposed"],
            host=0.0,
        )
        launching = (layers * kernels + 10 * head) * c["host_kernel_s"]
        gaps = 60 * layers * self.device.launch_overhead_s
        running = stage.on_device + gaps
        # running + excess = (launching^4 + running^4)^(1/4), written so that nothing cancels
        ratio = (launching / running) ** 4
        excess = running * math.expm1(math.log1p(ratio) / 4)
        return stage._replace(host=excess + gaps + c["micro_batch_overhead_s"])

    def step(self) -> dict[str, float]:
        c, p, m = self.c, self.plan, self.micro_batches
        inner, last = self.stage(self.inner, head=p.pp == 1), self.stage(self.last, head=True)
        inner_s, last_s = inner.on_device + inner.host, last.on_device + last.host
        slowest = last if last_s > inner_s else inner
        bubble = (
            (p.pp - 1) * ((inner_s * (p.pp - 1) + last_s) / p.pp - self._free_hops() * slowest.pp) / self.vpp
        )
        bubble *= 1 / 3 if p.schedule == "zero_bubble" else 1.0
        window = slowest.compute + slowest.moved + slowest.host
        each, end, latency = self._data_traffic()
        exposed = m * _not_hidden(each, window, c["dp_exposed"]) + latency
        exposed += _not_hidden(end, max(window - each, 0.0), c["dp_exposed"])
        dense, expert = self.parameters(self.inner)
        local = dense / self.dense_shards + expert / self.expert_shards
        optimizer = local * 30 * c["optimizer_traffic"] / self.bandwidth
        busy = slowest.on_device * m + bubble + exposed + optimizer
        waiting = c["scale_jitter"] * math.log2(self.cluster.num_devices) * busy
        return {
            "compute": slowest.compute * m,
            "memory_bound_ops": slowest.moved * m,
            "tp_comm_exposed": slowest.tp * m,
            "cp_comm_exposed": slowest.cp * m,
            "ep_comm_exposed": slowest.ep * m,
            "dp_comm_exposed": exposed,
            "pp_comm_exposed": slowest.pp * m,
            "pipeline_bubble": bubble,
            "optimizer": optimizer,
            "host_and_other": slowest.host * m + c["step_overhead_s"] + waiting,
        }

    def _free_hops(self) -> float:
        """gloo: hops between stages of one node are left out of the bubble."""
        g = self.pipeline_group()
        if not self.device.collectives.is_flat or g.domains <= 1:
            return 0.0
        return 1 - (g.domains - 1) / max(g.size - 1, 1)

    def _data_traffic(self) -> tuple[float, float, float]:
        p = self.plan
        dense, expert = self.parameters(self.inner)
        parts = (
            self.data(dense, p.dp * p.cp, p.tp, self.dense_shards),
            self.data(expert, self.expert_ranks, p.ep * p.etp, self.expert_shards),
        )
        each, end, latency = (sum(column) for column in zip(*parts, strict=True))
        return each, end, latency
