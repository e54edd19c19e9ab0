"""What one scenario sends and how long that takes on the wire, for the reference cost model.

Plain Python, written from docs/cost-model.md; shares no formula with `collectives.py` and `traffic.py`.
"""

import math
from typing import NamedTuple

from tools.cost.reference_case import ReferenceCase
from tools.cost.traits import FUSED_DISPATCHERS

FUSED_CARD_SHARE = 0.9
FLAT_CARD_SHARE = 0.7


class Group(NamedTuple):
    """A communication group of `size` ranks, `inside` of them in one scale-up domain."""

    size: float
    inside: float
    links: float  # share of the scale-up bandwidth that it can use

    @property
    def domains(self) -> float:
        return self.size / self.inside


class Sent(NamedTuple):
    """Seconds on the wire, and bytes that go through the device's memory meanwhile."""

    seconds: float = 0.0
    moved_bytes: float = 0.0

    def plus(self, other: "Sent") -> "Sent":
        return Sent(self.seconds + other.seconds, self.moved_bytes + other.moved_bytes)

    def times(self, count: float) -> "Sent":
        return Sent(count * self.seconds, count * self.moved_bytes)


class DataMessages(NamedTuple):
    """In each micro-batch, and at the end of the step."""

    each: Sent = Sent()
    gradients: Sent = Sent()
    parameters: Sent = Sent()


class ReferenceMessages(ReferenceCase):
    # One message

    def group(self, size: float, stride: float, domain: float | None = None) -> Group:
        inside = min(max(math.floor((domain or self.domain) / stride), 1), size)
        links = 1.0
        if self.torus:
            side = max(min(self.domain, self.cluster.num_devices), 2) ** (1 / self.torus)
            axes = math.ceil(math.log(max(inside, 2)) / math.log(max(side, 2)) - 1e-9)
            links = min(axes / self.torus, 1.0)
        return Group(size, inside, links)

    def transfer(self, g: Group, message: float) -> float:
        """Seconds of an all-gather that grow with its bytes."""
        if g.size <= 1:
            return 0.0
        ring = g.size if self.device.collectives.is_flat else g.domains
        slow = message * (ring - 1) / ring / (g.inside * self.slow_rate) if g.domains > 1 else 0.0
        fast = message * (g.size - 1) / g.size / (self.fast_rate * g.links)
        return max(fast, slow)

    def latency(self, g: Group) -> float:
        if g.size <= 1:
            return 0.0
        hop = self.device.intra_node_latency_s
        return hop * (g.inside - 1) + max(self.c["rank_latency_s"], hop) * (g.size - g.inside)

    def gather(self, g: Group, message: float) -> float:
        return self.transfer(g, message) + self.latency(g)

    def all_to_all(self, g: Group, sent: float, copies: int, dispatcher: str = "") -> float:
        if g.size <= 1:
            return 0.0
        if dispatcher == "allgather":
            return self.gather(g, sent / copies * g.size)
        fast = sent * (g.size - 1) / g.size / (self.fast_rate * g.links)
        reached = g.domains * (1 - (1 - 1 / g.domains) ** copies)
        if groups := self.model.n_group:
            reached = min(reached, max(self.model.topk_group * max(g.domains / groups, 1), 1))
        bound = sent if self.device.collectives.is_flat else sent / copies * reached
        is_fused = dispatcher in FUSED_DISPATCHERS
        rate = FUSED_CARD_SHARE * self.card_rate if is_fused else self.slow_rate
        slow = bound * (g.domains - 1) / g.domains / rate
        latency = self.device.intra_node_latency_s * math.log2(g.size)
        latency += self.device.inter_node_latency_s if g.domains > 1 else 0.0
        return max(fast, slow) + latency

    def next_rank(self, g: Group, message: float) -> float:
        if g.size <= 1:
            return 0.0
        if g.domains > 1:
            cards = g.inside if self.device.collectives.is_flat else 1
            return message / (cards * self.slow_rate) + self.device.inter_node_latency_s
        return message / (self.fast_rate * g.links) + self.device.intra_node_latency_s

    # What is sent

    def tensor(self) -> float:
        """The all-reduce of a hidden state, or the gather and scatter of sequence parallelism."""
        scatter = self.device.collectives.reduce_scatter_passes if self.plan.sequence_parallel else 1.0
        return (1 + scatter) * self.gather(self.group(self.plan.tp, 1), self.tokens * self.h * self.b)

    def ring(self) -> float:
        """Keys and values around the context ranks, forward and backward."""
        p = self.plan
        block = self.tokens * max(self.kv_heads / p.tp, 1) * (self.d_qk + self.d_v) * self.b
        return 3 * (p.cp - 1) * self.next_rank(self.group(p.cp, p.tp), block)

    def ring_merge(self) -> float:
        """Partial outputs and gradients, read and written in fp32 at every step of the ring."""
        p = self.plan
        if p.cp == 1:
            return 0.0
        outputs, queries = self.heads * self.d_v, self.heads * self.d_qk
        merged = 8 * self.tokens * (outputs + queries + self.kv_heads * (self.d_qk + self.d_v)) / p.tp
        return p.cp * merged / self.bandwidth

    def mixer_exchange(self) -> float:
        """Heads for tokens and back, forward and backward."""
        if not self.mixer:
            return 0.0
        p, width = self.plan, self.mixer.columns + self.mixer.rows
        return 2 * self.all_to_all(self.group(p.cp, p.tp), self.tokens * width / p.tp * self.b, 1)

    def expert_exchange(self) -> float:
        """Dispatch and combine, forward and backward, and the gathers inside a divided expert."""
        p, copies = self.plan, self.model.num_experts_per_tok
        routed = self.tokens / p.tp * copies * self.expert_h * self.b
        inner = self.gather(self.group(p.etp, 1), routed * p.etp)
        return 4 * (self.all_to_all(self.group(p.ep, p.etp), routed, copies, self.dispatcher) + inner)

    def pipeline_group(self) -> Group:
        p = self.plan
        return self.group(p.pp, p.tp * p.cp * p.dp)

    def pipeline(self) -> float:
        """Activations to the next stage and gradients back, for every chunk."""
        p, g = self.plan, self.pipeline_group()
        if p.pp == 1:
            return 0.0
        hidden = self.tokens * self.h * self.b
        scatters = self.traits.scatters_pipeline
        hop = self.next_rank(g, hidden / (p.tp if scatters else self.split))
        if self.vpp > 1 and g.domains <= 1:  # received ahead of need
            hop = 0.0
        if scatters and not p.sequence_parallel:
            hop += self.gather(self.group(p.tp, 1), hidden)
        return 2 * self.vpp * hop

    def free_hops(self) -> float:
        """gloo: share of the hops from the first stage to the last that stay inside a node."""
        g = self.pipeline_group()
        if not self.device.collectives.is_flat or g.domains <= 1:
            return 0.0
        return 1 - (g.domains - 1) / max(g.size - 1, 1)

    def data(self) -> DataMessages:
        """Of a stage: what is not an expert, and experts over their own replicas."""
        p = self.plan
        dense, expert = self.parameters(self.inner)
        parts = (
            self._sharded(dense, p.dp * p.cp, p.tp, self.dense_shards),
            self._sharded(expert, self.expert_ranks, p.ep * p.etp, self.expert_shards),
        )
        return DataMessages(*(part.plus(other) for part, other in zip(*parts, strict=True)))

    def _sharded(self, parameters: float, ranks: float, stride: float, shards: float) -> DataMessages:
        if not parameters:
            return DataMessages()
        p, domain = self.plan, self.domain
        if self.torus and 1 < self.shard < p.dp * p.cp:  # hybrid sharding: a slice per replica
            domain = min(domain, p.tp * p.pp * self.shard)
        group = self.group(shards, stride, domain)
        replicas = self.group(ranks / shards, stride * shards, domain)
        messages = self.inner * (self.traits.messages_per_layer if p.zero_stage else 1.0)
        weight_bytes = parameters * self.stored
        gradient_bytes = parameters * self.trained * self.reduced_bytes
        # frozen weights do not change, so they are gathered only if they are kept sharded
        gathered_bytes = weight_bytes * (1.0 if p.zero_stage == 3 else self.trained)
        wait = messages * self.latency(group)
        gather = Sent(
            self._shard_transfer(group, gathered_bytes) + wait, 2 * gathered_bytes if shards > 1 else 0.0
        )
        scatter = Sent(
            (self._shard_transfer(group, gradient_bytes) + wait)
            * self.device.collectives.reduce_scatter_passes,
            3 * gradient_bytes if shards > 1 else 0.0,
        )
        left = gradient_bytes / shards
        joined = Sent(
            2 * (self.transfer(replicas, left) + messages * self.latency(replicas)),
            5 * left if replicas.size > 1 else 0.0,
        )
        if p.zero_stage == 3:
            return DataMessages(gather.times(2).plus(scatter), joined, Sent())
        if p.zero_stage == 2:
            return DataMessages(scatter, joined, gather)
        return DataMessages(Sent(), scatter.plus(joined), gather)

    def _shard_transfer(self, g: Group, message: float) -> float:
        """A gather or scatter over the shards; parameter by parameter it leaves each node by one card."""
        usual = self.transfer(g, message)
        if self.plan.zero_stage < self.traits.flat_from_stage or g.domains <= 1:
            return usual
        return max(usual, message * (g.size - 1) / g.size / (FLAT_CARD_SHARE * self.slow_rate))
