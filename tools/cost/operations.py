"""The products of one layer and of the head as the cost model sees them, for drawing them under the roofline.

Forward, one micro-batch, one rank. Shapes and seconds are those of layers.py and kernels.py; nothing here
adds to a prediction.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tools.cost.calibration import Calibration, shipped_calibration
from tools.cost.coefficients import Coefficients, resolve
from tools.cost.encode import encode
from tools.cost.inputs import Array, Inputs
from tools.cost.kernels import attention_pairs, attention_s, gemm_moved_bytes, gemm_s
from tools.cost.layers import grouped_ratio, projections, routed
from tools.scenario import Scenario


@dataclass(frozen=True)
class Operation:
    """One product, or all products of a kind that run side by side (experts)."""

    name: str
    shape: str
    flops: float
    moved_bytes: float
    seconds: float

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.moved_bytes

    @property
    def flops_per_s(self) -> float:
        return self.flops / self.seconds


def list_operations(scenario: Scenario, calibration: Calibration | None = None) -> list[Operation]:
    """Of a scenario with a plan."""
    x, keys = encode([scenario])
    c = resolve(keys, (calibration or shipped_calibration()).shifts)
    found = [*_attention(x, c), *(_experts(x, c) if x.is_moe else ()), *_feed_forward(x, c)]
    return [*found, _product("output head", x, c, x.tokens, x.vocab / x.tp, x.hidden, low_precision=False)]


def _attention(x: Inputs, c: Coefficients) -> Iterator[Operation]:
    shapes = [(n, k) for n, k in projections(x) if n > 0]
    for position, (n, k) in enumerate(shapes):
        name = "attention output" if position == len(shapes) - 1 else "query, key, value"
        yield _product(name, x, c, x.tokens, n, k)
    width = x.qk_dim + x.v_dim
    moved = x.tokens * (x.heads + x.kv_heads) / x.tp * width * x.value_bytes
    seconds, _ = attention_s(x, c)
    shape = f"{x.seq:g} tokens, {x.heads / x.tp:g} heads of {x.v_dim:g}"
    yield _operation("attention core", shape, 2.0 * attention_pairs(x) * width, moved, seconds)


def _feed_forward(x: Inputs, c: Coefficients) -> Iterator[Operation]:
    dense = x.ffn if x.moe_layers < x.layers else np.zeros(())
    for name, width in (("feed-forward", dense), ("shared experts", x.shared_ffn)):
        if width > 0:
            yield _product(f"{name} up", x, c, x.tokens, width / x.tp * x.up_matrices, x.hidden)
            yield _product(f"{name} down", x, c, x.tokens, x.hidden, width / x.tp)


def _experts(x: Inputs, c: Coefficients) -> Iterator[Operation]:
    held, rows, width = routed(x)
    for name, n, k in (("experts up", width * x.up_matrices, x.hidden), ("experts down", x.hidden, width)):
        one = _product(name, x, c, rows / held, n, k)
        yield _operation(
            name,
            f"{held:g} of {one.shape}",
            one.flops * held,
            one.moved_bytes * held,
            one.seconds * held / grouped_ratio(x, c),
        )


def _product(
    name: str, x: Inputs, c: Coefficients, m: Array, n: Array, k: Array, low_precision: bool = True
) -> Operation:
    moved = gemm_moved_bytes(x, m, n, k, low_precision)
    shape = f"{float(m):,.0f} × {float(n):,.0f} × {float(k):,.0f}"
    return _operation(name, shape, 2.0 * m * n * k, moved, gemm_s(x, c, m, n, k, low_precision))


def _operation(
    name: str, shape: str, flops: Array | float, moved: Array | float, seconds: Array | float
) -> Operation:
    return Operation(name, shape, float(flops), float(moved), float(seconds))
