"""FLOPs of matrix products and attention, counted operator by operator.

PyTorch's own counter also follows modules, by hooks that keep the graph alive and so spoil the memory
figures, and has no formula for the CPU's attention kernel.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from tools.dryrun.watching import Arguments


class FlopRecorder:
    def __init__(self) -> None:
        self.flops = 0
        aten = torch.ops.aten
        self._formulas: dict[object, Callable[..., int]] = {
            **flop_registry,
            aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
            aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward_flops,
        }

    def seen(self, operator: Any, args: Arguments, named: Mapping[str, Any], result: object) -> None:  # noqa: ANN401
        formula = self._formulas.get(operator._overloadpacket)
        if formula is not None:
            self.flops += int(formula(*args, **named, out_val=result))


def _attention_flops(
    query: Tensor, key: Tensor, value: Tensor, dropout: float = 0.0, causal: bool = False, **rest: object
) -> int:
    """Two products over the pairs that the kernel computes; it leaves out the blocks above the diagonal."""
    batch, heads, queries, width = query.shape
    pairs = queries * (queries + 1) // 2 if causal else queries * key.shape[2]
    return 2 * batch * heads * pairs * (width + value.shape[3])


def _attention_backward_flops(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    scale: Tensor,
    dropout: float = 0.0,
    causal: bool = False,
    **rest: object,
) -> int:
    """Five products against two forward (FlashAttention-2, arXiv 2307.08691, section 4)."""
    return _attention_flops(query, key, value, causal=causal) * 5 // 2
