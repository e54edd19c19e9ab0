"""How each framework keeps weights, gradients, optimizer state and activations, as data."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache

import numpy as np

import kb_seed
from tools.cost.inputs import Array, Columns


@dataclass(frozen=True)
class MemorySettings(Columns):
    """Bytes a parameter, copies of an activation, and the fixed reserve; see calibration/memory.toml."""

    parameter_bytes: Array
    gradient_bytes: Array
    optimizer_bytes: Array
    gradients_sharded_from: Array
    hidden_kept: Array
    hidden_cast_kept: Array
    routed_kept: Array
    logits_bytes: Array
    none_kept: Array
    selective_kept: Array
    input_kept: Array
    residual_split: Array
    gathered_layers: Array
    buffer_copies: Array
    fragmentation_ratio: Array
    runtime_bytes: Array


Entry = dict[str, float | dict[str, float]]


@cache
def _table() -> dict[str, Entry]:
    return tomllib.loads(kb_seed.folder("calibration").joinpath("memory.toml").read_text())


def memory_settings(stacks: Sequence[str], precisions: Sequence[str]) -> MemorySettings:
    """One row a stack and precision; a single one gives scalars."""
    rows = [_row(stack, precision) for stack, precision in zip(stacks, precisions, strict=True)]
    columns = {
        f.name: np.array([row[f.name] for row in rows], dtype=np.float64) for f in fields(MemorySettings)
    }
    return MemorySettings(**{k: v if len(rows) > 1 else v[0] for k, v in columns.items()})


@cache
def _row(stack: str, precision: str) -> dict[str, float]:
    table = _table()
    entry = {**table["default"], **table.get(stack, {})}
    return {k: v.get(precision, v["default"]) if isinstance(v, dict) else v for k, v in entry.items()}
