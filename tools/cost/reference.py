"""The cost model a second time: plain Python for one scenario, written from docs/cost-model.md.

Shares no formula with the array model (only data files and the catalogue), so that recomputing a prediction
with it is a check and not a repetition. Property tests hold the two together within 1e-9.
"""

import math
from typing import NamedTuple

from tools.cost.calibration import Calibration, shipped_calibration
from tools.cost.reference_case import Mixer
from tools.cost.reference_memory import ReferenceMemory
from tools.cost.reference_messages import ReferenceMessages, Sent
from tools.cost.traits import FUSED_DISPATCHERS
from tools.scenario.spec import Plan, Scenario

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
    if plan.recompute:
        model = _Step(scenario, plan, plan.recompute, plan.recompute_layers, calibration)
    else:
        model = _chosen_by_memory(scenario, plan, calibration)
    factor = model.measured_factor()
    step = {name: seconds * factor for name, seconds in model.step().items()}
    return ReferencePrediction(step, {name: size / GIB for name, size in model.memory().items()})


def _chosen_by_memory(scenario: Scenario, plan: Plan, calibration: Calibration) -> "_Step":
    """None or selective if that fits, else full on as few layers as save what is too much."""
    none, selective, full = (
        _Step(scenario, plan, recompute, None, calibration) for recompute in ("none", "selective", "full")
    )
    memory_bytes = none.device.memory_bytes
    for model in (none, selective):
        if sum(model.memory().values()) <= memory_bytes:
            return model
    one = _Step(scenario, plan, "full", 1, calibration)
    least = sum(full.memory().values())
    per_layer = (sum(one.memory().values()) - least) / max(full.inner - 1, 1)
    spared = math.floor(max(memory_bytes - least, 0.0) / max(per_layer, 1.0) + 1e-9)
    return _Step(scenario, plan, "full", max(full.inner - spared, 1), calibration)


class Pass(NamedTuple):
    """Seconds of arithmetic and of memory-bound work, forward and backward."""

    forward: float = 0.0
    backward: float = 0.0
    moved_forward: float = 0.0
    moved_backward: float = 0.0
    last: float = 0.0  # of `forward`, the product at the end of the block

    @property
    def whole_forward(self) -> float:
        return self.forward + self.moved_forward


class Stage(NamedTuple):
    """Seconds of one micro-batch on one pipeline stage."""

    compute: float
    repeated: float
    moved: float
    tp: float
    cp: float
    ep: float
    pp: float
    host: float

    @property
    def on_device(self) -> float:
        return self.compute + self.repeated + self.moved + self.tp + self.cp + self.ep + self.pp


def _add(*passes: tuple[float, Pass]) -> Pass:
    return Pass(*(sum(share * part[i] for share, part in passes) for i in range(len(Pass._fields))))


FA2_AT_HOME = ("volta", "ampere", "ada", "blackwell-rtx", "cdna2", "cpu")
PCIE_3, PCIE_4, PCIE_5, NVLINK_C2C = 12e9, 24e9, 50e9, 200e9
HOST_LINKS = {"volta": PCIE_3, "ampere": PCIE_4, "ada": PCIE_4, "cdna2": PCIE_4, "cpu": PCIE_4}
HOST_MEMORY = 50e9


def _not_hidden(sent: float, window: float, cost: float) -> float:
    return max(sent - window, 0.0) + cost * min(sent, window)


class _Step(ReferenceMemory, ReferenceMessages):
    """The time of a step: kernels, layers, stages."""

    # One kernel

    def gemm(self, m: float, n: float, k: float, low: bool = True) -> float:
        d, c = self.device, self.c
        peak = self.peak if low else self.peak_16
        if low and self.operand < 2:
            narrow = self.peak * (c["fp8_gain"] if self.operand >= 1 else c["fp4_gain"])
            peak = max(narrow, self.peak_16)
        if d.is_systolic:
            inner = float(math.ceil(k / d.tile_n) * d.tile_n)
            padding = math.ceil(n / d.tile_n) * d.tile_n * inner / max(n * k, 1)
        else:
            inner = k
            waves = math.ceil(math.ceil(m / d.tile_m) * math.ceil(n / d.tile_n) / d.compute_units)
            padded = waves * d.compute_units * d.tile_m * d.tile_n / max(m * n, 1)
            padding = 1 + c["gemm_wave_weight"] * (min(max(padded, 1), 4) - 1)
        depth = 1 + c["gemm_depth_half"] / max(inner, 1)
        operands = (m * k + k * n) * (self.operand if low else self.b)
        arithmetic = 2 * m * n * k * padding * depth / (peak * self.power * c["gemm_efficiency"])
        return arithmetic + (operands + m * n * self.b) / self.bandwidth

    def linear(self, m: float, n: float, k: float, low: bool = True) -> Pass:
        backward = self.gemm(m, k, n, low)
        if not self.training.lora:
            backward += self.gemm(n, k, m, low)
            # added to the main gradient, not written once
            accumulated = 2 * self.traits.gradient(self.training.precision) - self.b
            backward += n * k * max(accumulated, 0.0) / self.bandwidth
        # quantized weights are read and written out for every product with them
        opened = n * k * (self.stored + self.b) / self.bandwidth if low and self.stored < self.b else 0.0
        return Pass(self.gemm(m, n, k, low) + opened, backward + opened)

    def traffic(self, elements: float, cast: float) -> Pass:
        """Memory-bound work, twice as much backward, and the casts of low precision."""
        base = elements * self.b * self.c["elementwise_traffic"] / self.bandwidth
        casts = cast * 4 / self.bandwidth if self.operand < 2 else 0.0
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
        rate = self.peak_16 * self.power * self.c["attention_efficiency"] * self.head_share(width)
        is_away = self.device.generation not in FA2_AT_HOME and not self.device.is_systolic
        if self.traits.attention_kernel == "fa2" and is_away and t.flash_attention:
            rate *= 0.3 if self.device.vendor == "amd" else 0.55
        forward = (4 * scores * width + self.tokens / self.plan.tp * self.kinds.index_flops) / rate
        if t.flash_attention:
            return forward, forward * 2.5 / 0.85
        passes = scores * self.b * self.c["attention_score_passes"] / self.bandwidth
        return forward + passes, 2 * forward + passes

    def head_share(self, width: float) -> float:
        """Of a wide head's rate: exponentials beside products, or whole tiles."""
        if self.device.is_systolic:
            return width / (math.ceil(width / self.device.tile_n) * self.device.tile_n)
        return width / (width + self.peak_16 / (4 * self.device.exponentials_per_s))

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
        core = self.tokens / tp * mixer.flops
        core /= self.peak_16 * self.power * self.c["attention_efficiency"]
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
        return _add((1.0, up), (1.0, down), (1.0, moved))._replace(last=down.forward)

    def expert_rows(self) -> float:
        """Tokens that all experts of a rank get together."""
        p, capacity = self.plan, self.training.capacity_factor or 1.0
        return self.tokens * self.model.num_experts_per_tok / p.tp * p.etp * capacity

    def experts(self) -> Pass:
        m, p = self.model, self.plan
        held, width = max(m.num_experts / p.ep, 1), m.moe_intermediate_size / p.etp
        rows = self.expert_rows()
        ratio = self.c["grouped_gemm_ratio"]
        ratio *= self.c["grouped_low_precision_ratio"] if self.operand < 2 else 1.0
        up = self.linear(rows / held, width * self.up, self.expert_h)
        down = self.linear(rows / held, self.expert_h, width)
        permuted = rows * self.expert_h * 4
        elements = permuted + rows * (self.up + 1) * width + self.tokens * 5 * self.h / self.split
        moved = self.traffic(elements, rows * (self.expert_h + width))
        shared = self.mlp(self.shared) if self.shared else Pass()
        down = down._replace(last=down.forward)
        parts = [(held / ratio, up), (held / ratio, down), (1.0, moved), (1.0, shared)]
        if self.expert_h < self.h:
            narrow = self.expert_h / p.tp
            parts += [(1.0, self.linear(self.tokens, narrow, self.h))]
            parts += [(1.0, self.linear(self.tokens, self.h, narrow))]
        return _add(*parts)

    # One stage

    def repeated(self, layer: Pass, mlp: Pass, experts: Pass) -> float:
        """Seconds of an average layer's forward pass that backward repeats; the blocks weigh their shares."""
        core = self.attention_core()[0] * self.kinds.attention
        if self.recompute == "none":
            return 0.0
        if self.recompute == "full":
            skipped = layer.last if self.traits.recompute_stops_early else 0.0
            return (layer.whole_forward - skipped) * self.repeated_share
        if self.modules is None:
            share = self.traits.selective_share * self.c["selective_recompute"]
            return share * layer.whole_forward or core
        value_s = self.b * self.c["elementwise_traffic"] / self.bandwidth
        activated = self.expert_rows() * (self.up + 1) * self.model.moe_intermediate_size / self.plan.etp
        times = {
            "core_attn": core,
            "layernorm": 4 * self.tokens * self.h / self.split * value_s,
            "mla_up_proj": self.latent_up() if self.latent else 0.0,
            "mlp": mlp.whole_forward,
            "moe": experts.whole_forward,
        }
        if "moe" not in self.modules:  # else repeated with it
            times["moe_act"] = self.moe * activated * value_s
            times["shared_experts"] = self.moe * self.mlp(self.shared).whole_forward if self.shared else 0.0
        return sum(times[name] for name in sorted(self.modules) if name in times)

    def latent_up(self) -> float:
        """Forward of the products from MLA's latents to the heads."""
        m, tp = self.model, self.plan.tp
        queries = self.linear(self.tokens, self.heads * self.d_qk / tp, m.q_lora_rank or self.h).forward
        keys = self.heads * (m.qk_nope_head_dim + self.d_v) / tp
        up = queries + self.linear(self.tokens, keys, m.kv_lora_rank).forward
        return up * self.kinds.ratio * self.kinds.attention

    def exchanged(self, whole_forward: float) -> float:
        """Dispatch and combine of an average layer that nothing hides."""
        if not self.model.num_moe_layers:
            return 0.0
        repeats = float("moe" in self.modules) if self.modules is not None else self.repeated_share
        sent = self.moe * self.expert_exchange() * (1 + 0.5 * repeats)
        sent *= 1.0 if self.dispatcher in FUSED_DISPATCHERS else self.c["alltoall_cost"]
        if self.training.overlap_moe_communication:
            sent = _not_hidden(sent, 3 * whole_forward, 0.2)
        return sent * self.c["ep_exposed"]

    def launched_again(self) -> float:
        """Share of a layer's forward launches that is repeated."""
        if self.recompute != "selective":
            return self.repeated_share
        return 0.3 if self.modules is not None else max(self.traits.selective_share, 0.05)

    def launches(self, again: float) -> float:
        """Kernels of an average layer, `again` being the share of its forward pass that is repeated."""
        t, p, m = self.traits, self.plan, self.model
        count = self.kernels * (1 + 0.4 * again)
        if p.tp > 1:
            count += max(t.tensor_kernels, t.pipelined_tensor_kernels * p.tp if p.pp > 1 else 0.0)
        if m.num_moe_layers:
            count += self.moe * (self.c["host_moe_kernels"] + 12 * m.num_experts / p.ep)
        return count

    @property
    def kernels(self) -> float:
        return self.traits.kernels_per_layer * (1 if self.training.flash_attention else 2)

    def stage(self, layers: int, heads: int) -> Stage:
        c, p, m, t = self.c, self.plan, self.model, self.training
        mlp = _add((self.dense, self.mlp(m.intermediate_size)))
        experts = _add((self.moe, self.experts())) if m.num_moe_layers else Pass()
        mixing = [(self.kinds.attention, self.attention())]
        mixing += [(self.kinds.mixed, self.other_mixer(self.mixer))] if self.mixer else []
        layer = _add(*mixing, (1.0, mlp), (1.0, experts))
        again = self.repeated(layer, mlp, experts)
        head = self.linear(self.tokens, m.vocab_size / p.tp, self.h, low=False)
        passes = 1 + 2 if self.traits.has_fused_loss(self.training) else 2 * 3
        loss = passes * 4 * self.tokens * m.vocab_size / p.tp / self.bandwidth
        pairs = self.kinds.sublayers - self.moe
        repeated_pairs = max(pairs - self.traits.recompute_stops_early, 0) * self.repeated_share
        reduces = layers * (2 * pairs + repeated_pairs) + heads
        overlaps = self.traits.overlaps_tensor_traffic(t)
        ring = _not_hidden(self.ring(), self.attention_core()[0] * 3.5, c["cp_exposed"]) + self.ring_merge()
        stage = Stage(
            compute=layers * (layer.forward + layer.backward) + heads * (head.forward + head.backward),
            repeated=layers * again,
            moved=layers * (layer.moved_forward + layer.moved_backward) + heads * loss,
            tp=self.tensor() * reduces * (c["tp_exposed"] if overlaps else 1.0),
            cp=layers * (self.kinds.attention * ring + self.kinds.mixed * self.mixer_exchange()),
            ep=layers * self.exchanged(layer.whole_forward),
            pp=self.pipeline() * c["pp_exposed"],
            host=0.0,
        )
        launching = (layers * self.launches(self.launched_again()) + 10 * heads) * c["host_kernel_s"]
        gaps = self.kernels * layers * self.device.launch_overhead_s
        if self.traits.has_cuda_graph(t, self.device, m.is_moe):
            launching, gaps = 0.0, 0.3 * gaps
        running = stage.on_device + gaps
        power = 2 if m.num_moe_layers and not t.capacity_factor else 4
        # running + excess = (launching^power + running^power)^(1/power), written so that nothing cancels
        excess = running * math.expm1(math.log1p((launching / running) ** power) / power)
        return stage._replace(host=excess + gaps + c["micro_batch_overhead_s"])

    # One step

    def step(self) -> dict[str, float]:
        c, p, m = self.c, self.plan, self.micro_batches
        heads = 1 + self.model.num_nextn_predict_layers
        inner, last = self.stage(self.inner, heads if p.pp == 1 else 0), self.stage(self.last, heads)
        inner_s, last_s = inner.on_device + inner.host, last.on_device + last.host
        slowest = last if last_s > inner_s else inner
        mean = (inner_s * (p.pp - 1) + last_s) / p.pp
        bubble = (p.pp - 1) * (mean - self.free_hops() * slowest.pp) / self.vpp
        bubble *= 1 / 3 if p.schedule == "zero_bubble" else 1.0
        exposed = self.data_exposed(slowest.compute + slowest.repeated + slowest.moved + slowest.host)
        optimizer = self.optimizer()
        busy = slowest.on_device * m + bubble + exposed + optimizer
        waiting = c["scale_jitter"] * math.log2(self.cluster.num_devices) * busy
        return {
            "compute": slowest.compute * m,
            "recompute": slowest.repeated * m,
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

    def data_exposed(self, window: float) -> float:
        """Per step: under each micro-batch, then under what is left of the last ones."""
        p, sent = self.plan, self.data()
        overlaps = self.traits.overlaps_data_traffic(self.training)
        chunks = 1 + (min(p.pp, self.micro_batches) - 1) * (self.vpp - 1) / self.vpp
        window = window if overlaps else 0.0
        left = max(window * chunks - sent.each.seconds, 0.0)
        each = self.micro_batches * self.beside_compute(sent.each, window)
        gradients = self.beside_compute(sent.gradients, left * 2 / 3)
        return each + gradients + self.beside_compute(sent.parameters, left / 3)

    def beside_compute(self, sent: Sent, window: float) -> float:
        """What is not hidden, and what the hidden part costs in multiprocessors and memory bandwidth."""
        if not sent.seconds:
            return 0.0
        hidden = min(sent.seconds, window)
        moved = sent.moved_bytes / self.bandwidth * hidden / sent.seconds
        return sent.seconds - hidden + min(self.c["dp_exposed"] * hidden + moved, hidden)

    def optimizer(self) -> float:
        dense, expert = self.parameters(self.inner)
        updated = (dense / self.dense_shards + expert / self.expert_shards) * self.trained
        if not self.training.optimizer_offload:
            return updated * 30 * self.c["optimizer_traffic"] / self.bandwidth
        link = HOST_LINKS.get(self.device.generation, PCIE_5)
        link = NVLINK_C2C if self.device.name in ("gb200", "gb300") else link
        return updated * (self.reduced_bytes + self.b) / link + updated * 30 / HOST_MEMORY
