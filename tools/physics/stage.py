"""Time of one micro-batch on one pipeline stage: layers with what is recomputed and exposed, the output head,
and what the host adds.
"""

from dataclasses import dataclass, replace

import numpy as np

from tools.physics.arithmetic import ZERO, is_any, maximum, minimum, number, where
from tools.physics.inputs import Array, Coefficients, Columns, Inputs
from tools.physics.kernels import BACKWARD_ATTENTION_FLOPS
from tools.physics.layers import Work, expert_block, head_block, latent_up_s, mixing_block, mlp_block, routed
from tools.physics.sizes import dense_share
from tools.physics.traffic import (
    GATHER,
    HEADS,
    context_s,
    expert_s,
    heads_exchange_s,
    mixer_exchange_s,
    ring_merge_s,
    tensor_pair_s,
)

KERNELS_OF_HEAD = 10.0
EXPERT_KERNELS, NARROW_EXPERT_KERNELS = 20.0, 40.0
"""Launches for each expert that a rank holds: Transformer Engine's grouped linear takes one at a time, and
casts each in 8 bits."""
PLAIN_DISPATCH_KERNELS = 400.0
"""Further launches of an exchange that is not one fused kernel each way: sizes, sorts, copies to the host."""
OVERLAPPED_LAUNCHES = 1.15
"""Host time of a schedule that cuts layers into pieces of two micro-batches (read off runs/mbridge)."""
GRAPH_GAP = 0.3
"""Gap between kernels in a CUDA graph over that between launched ones: an assumption, 0.5 of 1.5 us."""
OVERLAPPED_EXPERTS_COST = 0.2
"""What an exchange under another micro-batch costs it: DeepEP takes about 20 of 132 multiprocessors."""
FORWARD_LAUNCH_SHARE = 0.4
"""Share of a layer's launches that belong to its forward pass, which recomputation repeats."""
OFFLOADED_STATES = 8.0
"""Hidden states' worth of what a layer keeps that goes to the host: inputs of its products and norms."""
COMPILED_LAUNCHES = 0.5
"""Launches of a compiled block over those of an eager one: norms, rotary embedding, activation are fused."""
CORE_LAUNCHED, MODULES_LAUNCHED = 0.05, 0.3
"""Shares of a layer's forward launches: fused attention alone, and a few named modules; assumptions."""


@dataclass(frozen=True)
class StageTime(Columns):
    """Seconds of one micro-batch."""

    compute: Array
    recompute: Array = ZERO
    elementwise: Array = ZERO
    tp: Array = ZERO
    cp: Array = ZERO
    ep: Array = ZERO
    pp: Array = ZERO
    host: Array = ZERO

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
    mlp = mlp_block(x, c, x.ffn, x.wide_mlp) * dense_share(x, moe_share)
    work, experts = mixing + mlp, None
    if is_any(x.moe_layers):
        experts = expert_block(x, c) * moe_share
        work = work + experts
    whole = work.forward + work.forward_elementwise
    # What backward repeats. Megatron's selective recomputation repeats the attention core (Korthikanti et
    # al., arXiv 2205.05198, section 5), other frameworks' a share of all.
    full, stated = where(x.recompute >= 2, x.full_share, 0.0), x.recompute_modules > 0
    shared = x.selective_share * c.selective_recompute * whole
    selective = where(x.selective_share > 0, shared, core_forward)
    if is_any(stated):
        selective = where(stated, _modules_s(x, c, moe_share, core_forward, mlp, experts), selective)
    launched = where(stated, MODULES_LAUNCHED, maximum(x.selective_share, CORE_LAUNCHED))
    # A pair of tensor-parallel messages for each part of a layer, both ways, and again if it is recomputed;
    # of a layer with experts only the shared ones have it.
    pairs = 2.0 - moe_share * where(x.shared_ffn > 0, 0.0, 1.0) + x.mixing_offset + x.dense_offset
    pairs = 2.0 * pairs + full * maximum(pairs - x.stops_early, 0.0)
    # Rings of keys and values run under the attention core; other mixers exchange heads for tokens.
    window = core_forward * (1.0 + BACKWARD_ATTENTION_FLOPS) / maximum(x.attention_share, 1e-9)
    # Attention waits for what it gathers (Llama 3, arXiv 2407.21783, section 3.3.2).
    shown = where(x.context_exchange == GATHER, 1.0, c.cp_exposed)
    context = not_hidden(context_s(x, c), window, shown) + ring_merge_s(x)
    by_heads = x.context_exchange == HEADS
    if is_any(by_heads):
        context = where(by_heads, heads_exchange_s(x, c), context)
    context = context * x.attention_share
    if is_any(x.mixer_share):
        context = context + mixer_exchange_s(x, c) * x.mixer_share
    everything, copied = whole - x.stops_early * work.last, ZERO
    if is_any(x.offloaded_share):
        # activations leave and return under the layer's own work, unless the host's link takes longer
        moved_s = (
            OFFLOADED_STATES * x.tokens * x.hidden * x.value_bytes / x.sequence_parallel_degree / x.host_link
        )
        copied = x.offloaded_share * 2.0 * maximum(moved_s - whole, 0.0)
    exchanged, repeats = ZERO, ZERO
    if experts is not None:
        repeats = where((x.recompute == 1) & stated, x.repeats("moe"), full)
        exchanged = _experts_exposed_s(x, c, moe_share, repeats, whole)
    return StageTime(
        compute=work.forward + work.backward,
        # what is named is part of the whole: it costs no more than all of it
        recompute=x.by_recompute(0.0, minimum(selective, everything), everything * full) + copied,
        elementwise=work.forward_elementwise + work.backward_elementwise,
        tp=where(x.tp > 1, tensor_pair_s(x, c) * pairs * tensor_exposed(x, c), 0.0),
        cp=context,
        ep=exchanged,
        host=_kernels(x, c, moe_share, x.by_recompute(0.0, launched, full), repeats)
        * c.host_kernel_s
        * x.host_state,
    )


def _kernels(x: Inputs, c: Coefficients, moe_share: Array, again: Array, experts_again: Array) -> Array:
    """Launches of a layer, both ways; `again` is the share of its forward pass that is repeated, and of its
    experts'."""
    kernels = x.kernels_per_layer * (1.0 + FORWARD_LAUNCH_SHARE * again) * (1.0 - x.graphed_layers)
    pipelined = where(x.pp > 1, x.pipelined_tensor_kernels * x.tp, 0.0)
    kernels = kernels + where(x.tp > 1, maximum(x.tensor_kernels, pipelined), 0.0)
    each = where(x.gemm_bytes < 2.0, NARROW_EXPERT_KERNELS, EXPERT_KERNELS)
    routing = c.host_moe_kernels + where(x.has_fused_dispatch > 0, 0.0, PLAIN_DISPATCH_KERNELS)
    experts = (routing + each * x.experts / x.ep) * (1.0 + FORWARD_LAUNCH_SHARE * experts_again)
    launches = kernels + moe_share * experts * (1.0 - x.graphed_experts)
    launches = launches * where(x.is_compiled > 0, COMPILED_LAUNCHES, 1.0)
    return launches * where(x.expert_overlap > 0, OVERLAPPED_LAUNCHES, 1.0)


def _experts_exposed_s(x: Inputs, c: Coefficients, moe_share: Array, repeats: Array, window: Array) -> Array:
    """Dispatch and combine that compute does not hide. With the overlap of 1F1B (DualPipe, arXiv 2412.19437,
    section 3.2.1) only what exceeds the other micro-batch's forward and backward pass is left, and a share of
    the rest."""
    sent = moe_share * expert_s(x, c) * (1.0 + 0.5 * repeats)
    overlapped = not_hidden(sent, 3.0 * window, number(OVERLAPPED_EXPERTS_COST))
    fused = where((x.has_fused_dispatch > 0) & (x.message_s <= 0), c.ep_exposed, 1.0)
    return where(x.expert_overlap > 0, overlapped * c.ep_exposed, sent * fused)


def tensor_exposed(x: Inputs, c: Coefficients) -> Array:
    """Share of tensor-parallel messages that products do not hide."""
    return where(x.tensor_overlap > 0, c.tp_exposed, 1.0)


def _modules_s(
    x: Inputs, c: Coefficients, moe_share: Array, core_forward: Array, mlp: Work, experts: Work | None
) -> Array:
    """Forward seconds of the modules that `recompute_modules` names."""
    norms = 4.0 * x.tokens * x.hidden / x.sequence_parallel_degree * x.value_bytes * c.elementwise_traffic
    total = x.repeats("core_attn") * core_forward + x.repeats("layernorm") * norms / x.memory_bandwidth
    # a checkpoint that stops early leaves out the last product of what it repeats
    total = total + x.repeats("mlp") * (mlp.forward + mlp.forward_elementwise - x.stops_early * mlp.last)
    if is_any(x.repeats("mla_up_proj")):
        total = total + x.repeats("mla_up_proj") * latent_up_s(x, c)
    if experts is None:
        return total
    _, rows, width = routed(x)
    activation = rows * (x.up_matrices + 1.0) * width * x.value_bytes / x.memory_bandwidth
    shared = mlp_block(x, c, x.shared_ffn, x.wide_shared)
    shared_s = where(x.shared_ffn > 0, shared.forward + shared.forward_elementwise, 0.0)
    # what is inside the experts' module is repeated with it, once
    apart = x.repeats("moe_act") * activation * c.elementwise_traffic + x.repeats("shared_experts") * shared_s
    repeated = experts.forward + experts.forward_elementwise - x.stops_early * experts.last
    total = total + x.repeats("moe") * repeated
    return total + moe_share * (1.0 - x.repeats("moe")) * apart


def head_time(x: Inputs, c: Coefficients) -> StageTime:
    work = head_block(x, c)
    return StageTime(
        compute=work.forward + work.backward,
        elementwise=work.forward_elementwise + work.backward_elementwise,
        tp=where(x.tp > 1, tensor_pair_s(x, c) * tensor_exposed(x, c), 0.0),
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
    whole = replace(layer * layers + head * heads, pp=where(x.pp > 1, sent_s * c.pp_exposed, 0.0))
    gaps = x.kernels_per_layer * layers * x.launch_s
    # a proxy's thread waits for the device and the host for the thread: nothing is launched meanwhile
    launching = where(x.has_cuda_graph > 0, 0.0, whole.host + where(x.message_s > 0, whole.ep, 0.0))
    gaps = where(x.has_cuda_graph > 0, GRAPH_GAP * gaps, gaps)
    # By how much launching is slower than running: a smooth maximum, since kernels vary in length. Routing
    # without a capacity reads the number of tokens of each expert back, so the host cannot run ahead.
    running = whole.device + gaps
    ratio = launching / maximum(running, 1e-12)
    squared = ratio * ratio
    ahead = np.sqrt(np.sqrt(1.0 + squared * squared)) - 1.0
    is_dropless = (x.moe_layers > 0) & (x.capacity <= 0)
    excess = running * where(is_dropless, np.sqrt(1.0 + squared) - 1.0, ahead)
    return replace(whole, host=excess + gaps + c.micro_batch_overhead_s)


def not_hidden(sent: Array, window: Array, cost: Array) -> Array:
    """Communication that `window` of compute cannot hide, plus what the hidden part costs the compute."""
    hidden = minimum(sent, window)
    return sent - hidden + cost * hidden
