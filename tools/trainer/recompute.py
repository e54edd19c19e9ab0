"""What a layer keeps for backward: everything, part, or its input only.

`selective` keeps attention, every second matrix product and what tensor ranks have summed, and computes the
rest again; it is torchtitan's selective operator checkpointing
(torchtitan/distributed/activation_checkpoint.py).
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from tools.trainer.attention import Rotary

Layer = Callable[[Tensor, Rotary], Tensor]


class _PolicyContext(Protocol):
    is_recompute: bool


def recomputing(recompute: str, layer: Layer) -> Layer:
    """The layer, run under the plan's recomputation."""
    if recompute == "none":
        return layer
    run: Callable[..., Tensor] = partial(checkpoint, layer, use_reentrant=False)
    return partial(run, context_fn=selective_contexts) if recompute == "selective" else run


def selective_contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """The pair of contexts, forward and recomputation, of one call of one layer."""
    contexts: Callable[..., tuple[AbstractContextManager[None], AbstractContextManager[None]]] = (
        create_selective_checkpoint_contexts
    )
    return contexts(EverySecondProduct())


class EverySecondProduct:
    """The policy; it counts the products of the forward pass and of the recomputation apart."""

    def __init__(self) -> None:
        self._products = {False: 0, True: 0}
        self._kept = _kept_operators()
        self._product = torch.ops.aten.mm.default

    def __call__(
        self, context: _PolicyContext, operator: object, *arguments: object, **named: object
    ) -> CheckpointPolicy:
        keep = operator in self._kept
        if operator == self._product:
            self._products[context.is_recompute] += 1
            keep = self._products[context.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE


def _kept_operators() -> set[object]:
    aten, collectives = torch.ops.aten, torch.ops._c10d_functional
    return {
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        collectives.all_reduce.default,
        collectives.reduce_scatter_tensor.default,
        collectives.all_to_all_single.default,
    }
