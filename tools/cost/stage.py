"""Time of one micro-batch on one pipeline stage: layers with what is recomputed and exposed, the output head,
and what the host adds.
"""

from dataclasses import dataclass, fields

import numpy as np

from tools.cost.arithmetic import is_any, maximum, minimum, number, where
from tools.cost.constants import Coefficients
from tools.cost.inputs import Array, Columns, Inputs
from tools.cost.kernels import BACKWARD_ATTENTION_FLOPS
from tools.cost.layers import Work, expert_block, head_block, latent_up_s, mixing_block, mlp_block, routed
from tools.cost.sizes import dense_share
from tools.cost.traffic import context_s, expert_s, mixer_exchange_s, ring_merge_s, tensor_pair_s

KERNELS_OF_HEAD = 10.0
HOST_EXPERT_KERNELS = 12.0
"""Launches for each expert that a rank holds: Transformer Engine's grouped linear casts one at a time."""
GRAPH_GAP = 0.3
"""Gap between kernels in a CUDA graph over that between launched ones: an assumption, 0.5 of 1.5 us."""
OVERLAPPED_EXPERTS_COST = 0.2
"""What an exchange under another micro-batch costs it: DeepEP takes about 20 of 132 multiprocessors."""
FORWARD_LAUNCH_SHARE = 0.4
"""Share of a layer's launches that belong to its forward pass, which recomputation repeats."""


@dataclass(frozen=True)
class StageTime(Columns):
    """Seconds of one micro-batch."""

    compute: Array
    recompute: Array
    elementwise: Array
    tp: Array
    cp: Array
    ep: Array
    pp: Array
    host: Array

    @property
    def device(self) -> Array:
        """All but what the host adds."""
        return self.compute + self.recompute + self.elementwise + self.tp + self.cp + self.ep + self.pp

    @property
    def total(self) -> Array:
        return self.device + self.host


def layer_time(x: Inputs, c: Coefficients, moe_share: Array) -> StageTime:
    """An average layer; `host` is the time to launch it, not yet what that adds."""
    mixing, core_forward = mixing_block(x, c)
    mlp = mlp_block(x, c, x.ffn).scaled(dense_share(x, moe_share))
    work = mixing + mlp
    full = where(x.recompute >= 2, minimum(x.recomputed_layers / x.stages.inner, 1.0), 0.0)
    experts = None
    if is_any(x.moe_layers):
        experts = expert_block(x, c).scaled(moe_share)
        work = work + experts
    whole = work.forward + work.forward_elementwise
    stated = x.repeats_stated > 0
    repeated_s = _stated_modules_s(x, c, moe_share, core_forward, mlp, experts) if is_any(stated) else 0.0
    again_s = _recomputed_s(x, c, whole, core_forward, work.last, repeated_s, full)
    repeats_experts = where((x.recompute == 1) & stated, x.repeats_experts, full)
    return StageTime(
        compute=work.forward + work.backward,
        recompute=again_s,
        elementwise=work.forward_elementwise + work.backward_elementwise,
        tp=_tensor_exposed_s(x, c, moe_share, full),
        cp=_context_exposed_s(x, c, core_forward),
        ep=number(0.0) if experts is None else _experts_exposed_s(x, c, moe_share, repeats_experts, whole),
        pp=number(0.0),
        host=_kernels(x, c, moe_share, _launched_again(x, full)) * c.host_kernel_s,
    )


def _tensor_exposed_s(x: Inputs, c: Coefficients, moe_share: Array, full: Array) -> Array:
    """A pair of messages for each part of a layer, both ways, and again for what is recomputed."""
    pairs = 2.0 - moe_share + x.mixing_offset + x.dense_offset
    pairs = 2.0 * pairs + full * maximum(pairs - x.stops_early, 0.0)
    return where(x.tp > 1, tensor_pair_s(x, c) * pairs * tensor_exposed(x, c), 0.0)


def _context_exposed_s(x: Inputs, c: Coefficients, core_forward: Array) -> Array:
    """Rings of keys and values under the attention core; other mixers exchange heads for tokens."""
    window = core_forward * (1.0 + BACKWARD_ATTENTION_FLOPS) / maximum(x.attention_share, 1e-9)
    ring = not_hidden(context_s(x, c), window, c.cp_exposed) + ring_merge_s(x)
    if not is_any(x.mixer_share):
        return ring * x.attention_share
    return ring * x.attention_share + mixer_exchange_s(x, c) * x.mixer_share


def _launched_again(x: Inputs, full: Array) -> Array:
    """Share of a layer's forward launches that recomputation repeats."""
    selective = where(x.repeats_stated > 0, MODULES_LAUNCHED, maximum(x.selective_share, CORE_LAUNCHED))
    return where(x.recompute <= 0, 0.0, where(x.recompute < 2, selective, full))


CORE_LAUNCHED, MODULES_LAUNCHED = 0.05, 0.3
"""Of a layer's forward launches: fused attention alone, and a few named modules; assumptions."""


def _kernels(x: Inputs, c: Coefficients, moe_share: Array, again: Array) -> Array:
    """Launches of a layer, both ways; `again` is the share of its forward pass that is repeated."""
    kernels = x.kernels_per_layer * (1.0 + FORWARD_LAUNCH_SHARE * again)
    pipelined = where(x.pp > 1, x.pipelined_tensor_kernels * x.tp, 0.0)
    kernels = kernels + where(x.tp > 1, maximum(x.tensor_kernels, pipelined), 0.0)
    return kernels + moe_share * (c.host_moe_kernels + HOST_EXPERT_KERNELS * x.experts / x.ep)


def _experts_exposed_s(x: Inputs, c: Coefficients, moe_share: Array, repeats: Array, window: Array) -> Array:
    """Dispatch and combine that compute does not hide. Without fused kernels they wait for permutations and
    for the sizes; with the overlap of 1F1B (DualPipe, arXiv 2412.19437, section 3.2.1) only what exceeds the
    other micro-batch's forward and backward pass is left, and a share of the rest."""
    slow = where(x.has_fused_dispatch > 0, 1.0, c.alltoall_cost)
    sent = moe_share * expert_s(x, c) * (1.0 + 0.5 * repeats) * slow
    overlapped = not_hidden(sent, 3.0 * window, OVERLAPPED_EXPERTS_COST * number(1.0))
    return where(x.expert_overlap > 0, overlapped, sent) * c.ep_exposed


def tensor_exposed(x: Inputs, c: Coefficients) -> Array:
    """Share of tensor-parallel messages that products do not hide."""
    return where(x.tensor_overlap > 0, c.tp_exposed, 1.0)


def _recomputed_s(
    x: Inputs,
    c: Coefficients,
    whole: Array,
    core_forward: Array,
    last: Array,
    stated_s: Array | float,
    full: Array,
) -> Array:
    """Of the forward pass, what backward repeats. Megatron's selective recomputation repeats the attention
    core (Korthikanti et al., arXiv 2205.05198, section 5), other frameworks' a share of all."""
    shared = x.selective_share * c.selective_recompute * whole
    selective = where(x.selective_share > 0, shared, core_forward)
    selective = where(x.repeats_stated > 0, stated_s, selective)
    every = (whole - x.stops_early * last) * full
    return where(x.recompute <= 0, 0.0, where(x.recompute < 2, selective, every))


def _stated_modules_s(
    x: Inputs, c: Coefficients, moe_share: Array, core_forward: Array, mlp: Work, experts: Work | None
) -> Array:
    """Forward seconds of the modules that `recompute_modules` names."""
    norms = 4.0 * x.tokens * x.hidden / x.sequence_parallel_degree * x.value_bytes * c.elementwise_traffic
    total = x.repeats_core * core_forward + x.repeats_norm * norms / x.memory_bandwidth
    total = total + x.repeats_mlp * (mlp.forward + mlp.forward_elementwise)
    if is_any(x.repeats_latent):
        total = total + x.repeats_latent * latent_up_s(x, c)
    if experts is None:
        return total
    _, rows, width = routed(x)
    activation = rows * (x.up_matrices + 1.0) * width * x.value_bytes / x.memory_bandwidth
    shared = mlp_block(x, c, x.shared_ffn)
    shared_s = where(x.shared_ffn > 0, shared.forward + shared.forward_elementwise, 0.0)
    # what is inside the experts' module is repeated with it, once
    apart = x.repeats_activation * activation * c.elementwise_traffic + x.repeats_shared * shared_s
    total = total + x.repeats_experts * (experts.forward + experts.forward_elementwise)
    return total + moe_share * (1.0 - x.repeats_experts) * apart


def head_time(x: Inputs, c: Coefficients) -> StageTime:
    work, zero = head_block(x, c), number(0.0)
    return StageTime(
        compute=work.forward + work.backward,
        recompute=zero,
        elementwise=work.forward_elementwise + work.backward_elementwise,
        tp=where(x.tp > 1, tensor_pair_s(x, c) * tensor_exposed(x, c), 0.0),
        cp=zero,
        ep=zero,
        pp=zero,
        host=KERNELS_OF_HEAD * c.host_kernel_s,
    )


@dataclass(frozen=True)
class LayerTimes(Columns):
    """An average layer and the output head."""

    layer: StageTime
    head: StageTime


def layer_times(x: Inputs, c: Coefficients) -> LayerTimes:
    """Depends on the plan by LAYER_FIELDS alone."""
    return LayerTimes(layer_time(x, c, x.stages.moe_share), head_time(x, c))


def stage_time(
    x: Inputs, c: Coefficients, layer: StageTime, layers: Array, head: StageTime, heads: Array, sent_s: Array
) -> StageTime:
    """A stage of `layers` layers and, where `heads` is 1, the output head; `sent_s` of `pipeline_s`."""
    parts = {
        f.name: getattr(layer, f.name) * layers + getattr(head, f.name) * heads for f in fields(StageTime)
    }
    launching = parts.pop("host")
    parts["pp"] = where(x.pp > 1, sent_s * c.pp_exposed, 0.0)
    device = sum(parts.values(), number(0.0))
    gaps = x.kernels_per_layer * layers * x.launch_s
    launching = where(x.has_cuda_graph > 0, 0.0, launching)
    gaps = where(x.has_cuda_graph > 0, GRAPH_GAP * gaps, gaps)
    return StageTime(**parts, host=_excess(x, launching, device + gaps) + gaps + c.micro_batch_overhead_s)


def _excess(x: Inputs, launching: Array, running: Array) -> Array:
    """By how much launching is slower than running: a smooth maximum, since kernels vary in length. Routing
    without a capacity reads the number of tokens of each expert back, so the host cannot run ahead."""
    ratio = launching / maximum(running, 1e-12)
    squared = ratio * ratio
    ahead = np.sqrt(np.sqrt(1.0 + squared * squared)) - 1.0
    is_dropless = (x.moe_layers > 0) & (x.capacity <= 0)
    return running * where(is_dropless, np.sqrt(1.0 + squared) - 1.0, ahead)


def not_hidden(sent: Array, window: Array, cost: Array) -> Array:
    """Communication that `window` of compute cannot hide, plus what the hidden part costs the compute."""
    hidden = minimum(sent, window)
    return sent - hidden + cost * hidden
