"""The cost model as one call: arrays in, step time, memory and the resolved recomputation out.

Long batches are cut into blocks that stay in the processor's cache; the result is the same.
"""

from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tools.cost.coefficients import Coefficients
from tools.cost.inputs import Array, Inputs
from tools.cost.memory import Memory, memory_bytes
from tools.cost.memory_settings import MemorySettings
from tools.cost.step import Breakdown, step_breakdown

BLOCK_ROWS = 8192
"""Blocks of 64 KiB an array: about fifty live arrays fit into the second-level cache."""

NOT_STATED, NONE, SELECTIVE, FULL = -1.0, 0.0, 1.0, 2.0

Part = TypeVar("Part", Breakdown, Memory)


@dataclass(frozen=True)
class Costs:
    """One entry a row."""

    breakdown: Breakdown
    memory: Memory
    step_time_s: Array
    memory_bytes: Array
    recompute: Array
    fits: NDArray[np.bool_]


def evaluate(x: Inputs, c: Coefficients, s: MemorySettings) -> Costs:
    """Every row of `x`; a scalar input gives arrays of length one."""
    rows = x.size
    if rows <= BLOCK_ROWS:
        return _evaluate_block(x, c, s, rows)
    starts = range(0, rows, BLOCK_ROWS)
    return _joined([_evaluate_slice(x, c, s, slice(i, min(i + BLOCK_ROWS, rows))) for i in starts])


def _evaluate_slice(x: Inputs, c: Coefficients, s: MemorySettings, rows: slice) -> Costs:
    return _evaluate_block(x.take(rows), c.take(rows), s.take(rows), rows.stop - rows.start)


def _evaluate_block(x: Inputs, c: Coefficients, s: MemorySettings, rows: int) -> Costs:
    x = resolve_recompute(x, s)
    breakdown, memory = step_breakdown(x, c), memory_bytes(x, s)
    total = memory.total
    return Costs(
        breakdown=_full(breakdown, rows),
        memory=_full(memory, rows),
        step_time_s=_broadcast(breakdown.total, rows),
        memory_bytes=_broadcast(total, rows),
        recompute=_broadcast(x.recompute, rows),
        fits=np.broadcast_to(total <= x.memory_bytes, rows),
    )


def resolve_recompute(x: Inputs, s: MemorySettings) -> Inputs:
    """Where recomputation is not stated: none if that fits, else selective if that fits, else full."""
    open_rows = x.recompute == NOT_STATED
    if not np.any(open_rows):
        return x
    chosen = np.full(np.broadcast_shapes(np.shape(x.recompute), np.shape(x.tp)), FULL)
    for code in (SELECTIVE, NONE):
        fitting = memory_bytes(x.with_recompute(np.asarray(code)), s).total <= x.memory_bytes
        chosen = np.where(fitting, code, chosen)
    return x.with_recompute(np.where(open_rows, chosen, x.recompute))


def _broadcast(value: Array, rows: int) -> Array:
    return np.broadcast_to(np.asarray(value, dtype=np.float64), (rows,))


def _full(part: Part, rows: int) -> Part:
    return type(part)(*(_broadcast(getattr(part, f.name), rows) for f in fields(part)))


def _joined(blocks: list[Costs]) -> Costs:
    def join(name: str) -> Array:
        return np.concatenate([getattr(b, name) for b in blocks])

    return Costs(
        breakdown=_joined_part(Breakdown, [b.breakdown for b in blocks]),
        memory=_joined_part(Memory, [b.memory for b in blocks]),
        step_time_s=join("step_time_s"),
        memory_bytes=join("memory_bytes"),
        recompute=join("recompute"),
        fits=np.concatenate([b.fits for b in blocks]),
    )


def _joined_part(kind: type[Part], parts: list[Part]) -> Part:
    return kind(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(kind)))
