"""One micro-batch on one pipeline stage: compute, memory-bound work, communication not hidden, host."""

from dataclasses import dataclass, fields

import numpy as np

from tools.cost.coefficients import Coefficients
from tools.cost.inputs import Array, Columns, Inputs
from tools.cost.kernels import BACKWARD_ATTENTION_FLOPS
from tools.cost.layers import Work, attention_block, expert_block, head_block, mlp_block
from tools.cost.traffic import context_s, expert_s, pipeline_s, ring_merge_s, tensor_pair_s

KERNELS_PER_LAYER = 60.0
"""Launches of one layer, forward and backward together, counted in eager profiles of Megatron and FSDP."""
KERNELS_OF_HEAD = 10.0
RELAUNCHED = 0.4
"""Share of a layer's launches that belong to its forward pass, which recomputation repeats."""


@dataclass(frozen=True)
class StageTime(Columns):
    """Seconds of one micro-batch."""

    compute: Array
    elementwise: Array
    tp: Array
    cp: Array
    ep: Array
    pp: Array
    host: Array

    @property
    def device(self) -> Array:
        """All but what the host adds."""
        return self.compute + self.elementwise + self.tp + self.cp + self.ep + self.pp

    @property
    def total(self) -> Array:
        return self.device + self.host


def layer_time(x: Inputs, c: Coefficients, moe_share: Array) -> StageTime:
    """An average layer; `host` is the time to launch it, not yet what that adds."""
    attention, core_forward = attention_block(x, c)
    work = attention + mlp_block(x, c, x.ffn).scaled(1.0 - moe_share)
    ep: Array = np.zeros(())
    full = np.where(x.recompute >= 2, 1.0, 0.0)
    if np.any(x.moe_layers):
        work = work + expert_block(x, c).scaled(moe_share)
        ep = moe_share * expert_s(x, c) * (1.0 + 0.5 * full) * c.ep_exposed
    again = _recomputed(x, c, work, core_forward)
    pairs = (2.0 - moe_share) * (2.0 + full)
    attention_s = core_forward * (1.0 + BACKWARD_ATTENTION_FLOPS)
    experts_held = x.experts / x.ep
    kernels = KERNELS_PER_LAYER * (1.0 + RELAUNCHED * again)
    kernels = kernels + moe_share * (c.host_moe_kernels + c.host_expert_kernels * experts_held)
    return StageTime(
        compute=work.forward * (1.0 + again) + work.backward,
        elementwise=work.forward_elementwise * (1.0 + again) + work.backward_elementwise,
        tp=np.where(x.tp > 1, tensor_pair_s(x, c) * pairs * c.tp_exposed, 0.0),
        cp=not_hidden(context_s(x, c), attention_s, c.cp_exposed) + ring_merge_s(x),
        ep=ep,
        pp=np.zeros(()),
        host=kernels * c.host_kernel_s,
    )


def _recomputed(x: Inputs, c: Coefficients, work: Work, core_forward: Array) -> Array:
    """Share of the forward pass that backward repeats. Without fused attention, selective recomputation
    repeats the attention core (Korthikanti et al., arXiv 2205.05198, section 5)."""
    whole = work.forward + work.forward_elementwise
    selective = np.where(x.flash > 0, c.selective_recompute, core_forward / whole)
    return np.select([x.recompute <= 0, x.recompute < 2], [0.0, selective], 1.0)


def head_time(x: Inputs, c: Coefficients) -> StageTime:
    work, zero = head_block(x, c), np.zeros(())
    return StageTime(
        compute=work.forward + work.backward,
        elementwise=work.forward_elementwise + work.backward_elementwise,
        tp=np.where(x.tp > 1, tensor_pair_s(x, c) * c.tp_exposed, 0.0),
        cp=zero,
        ep=zero,
        pp=zero,
        host=KERNELS_OF_HEAD * c.host_kernel_s,
    )


def stage_time(
    x: Inputs, c: Coefficients, layer: StageTime, layers: Array, head: StageTime, heads: Array
) -> StageTime:
    """A stage of `layers` layers and, where `heads` is 1, the output head."""
    parts = {
        f.name: getattr(layer, f.name) * layers + getattr(head, f.name) * heads for f in fields(StageTime)
    }
    launching = parts.pop("host")
    parts["pp"] = np.where(x.pp > 1, pipeline_s(x, c) * c.pp_exposed, 0.0)
    device = sum(parts.values(), np.zeros(()))
    gaps = KERNELS_PER_LAYER * layers * x.launch_s
    return StageTime(**parts, host=_excess(launching, device + gaps) + gaps + c.micro_batch_overhead_s)


def _excess(launching: Array, running: Array) -> Array:
    """By how much launching is slower than running: a smooth maximum, since kernels vary in length."""
    ratio = launching / np.maximum(running, 1e-12)
    squared = ratio * ratio
    return running * (np.sqrt(np.sqrt(1.0 + squared * squared)) - 1.0)


def not_hidden(sent: Array, window: Array, cost: Array) -> Array:
    """Communication that `window` of compute cannot hide, plus what the hidden part costs the compute."""
    hidden = np.minimum(sent, window)
    return sent - hidden + cost * hidden
