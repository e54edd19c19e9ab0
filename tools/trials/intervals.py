"""How much a cluster's own trials say about how far its predictions may be off.

As `tools.cost.intervals` learns it from published runs: the stack's usual error is that of all stacks, moved
by the trials' own errors, each predicted from the others. One trial says what the parts are, two begin to
say how well they go together.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tools.cost.coefficients import RowKeys
from tools.cost.inputs import Array, Inputs
from tools.cost.intervals import RANGED, IntervalModel, kind_names, shrunk


def learned_intervals(
    model: IntervalModel, x: Inputs, keys: RowKeys, left_out_errors: Array
) -> IntervalModel:
    """`left_out_errors` are log errors of trials that the others predicted; empty for a single trial."""
    known = replace(
        model,
        frameworks=_with(model.frameworks, keys.framework[0]),
        generations=_with(model.generations, keys.generation[0]),
        ranges={name: _widened(model.ranges[name], getattr(x, name)) for name in RANGED},
    )
    if not len(left_out_errors):
        return known
    kind = kind_names(x)[0]
    stack = keys.key("stack", 0)
    error = shrunk(left_out_errors, model.usual_error[kind])
    return replace(
        known,
        devices=_with(model.devices, keys.device[0]),
        stacks=_with(model.stacks, stack),
        stack_error={**model.stack_error, f"{stack}|{kind}": error},
    )


def _with(names: Sequence[str], name: str) -> list[str]:
    return sorted({*names, name})


def _widened(span: Sequence[float], values: Array) -> list[float]:
    low, high = span
    return [min(low, float(np.min(values))), max(high, float(np.max(values)))]
