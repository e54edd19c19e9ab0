"""How much a cluster's own trials say about how far its predictions may be off.

As `tools.cost.intervals` learns it from published runs: the stack's usual error is that of all stacks, moved
by the trials' own errors, each predicted from the others. One trial says only that such a workload was
seen; two begin to say how well the model fits the stack.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tools.cost.coefficients import RowKeys
from tools.cost.inputs import Array, Inputs
from tools.cost.intervals import RANGED, IntervalModel, kind_names, known_to, novelty, shrunk


def learned_intervals(
    model: IntervalModel, x: Inputs, keys: RowKeys, left_out_errors: Array
) -> IntervalModel:
    """`left_out_errors` are log errors of trials that the others predicted; empty for a single trial."""
    near = replace(model, ranges={name: _widened(model.ranges[name], getattr(x, name)) for name in RANGED})
    if not len(left_out_errors):
        return near
    label = f"{keys.key('stack', 0)}|{kind_names(x)[0]}"
    error = shrunk(left_out_errors, _usual_error(model, keys, label))
    return replace(
        near,
        frameworks=_with(model.frameworks, keys.framework[0]),
        generations=_with(model.generations, keys.generation[0]),
        devices=_with(model.devices, keys.device[0]),
        stacks=_with(model.stacks, keys.key("stack", 0)),
        stack_error={**model.stack_error, label: error},
    )


def _usual_error(model: IntervalModel, keys: RowKeys, label: str) -> float:
    """Of this stack, or of all; as much larger for one that was never measured as its interval is wider."""
    measured = known_to(model)
    level = str(novelty(keys, 0, measured))
    usual = model.usual_error[label.rsplit("|", 1)[1]]
    (low, high), (known_low, known_high) = model.quantiles[level], model.quantiles["0"]
    return model.stack_error.get(label, usual) * (high - low) / (known_high - known_low)


def _with(names: Sequence[str], name: str) -> list[str]:
    return sorted({*names, name})


def _widened(span: Sequence[float], values: Array) -> list[float]:
    low, high = span
    return [min(low, float(np.min(values))), max(high, float(np.max(values)))]
