"""What is counted of one rank's step, and the cost model's figures for the same step. Needs no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import numpy as np

from tools.model.calibration import shipped_calibration
from tools.model.constants import memory_settings, resolve
from tools.model.predict import FULL, SELECTIVE, evaluate
from tools.physics.encode import encode
from tools.physics.inputs import Array, Coefficients, Inputs
from tools.physics.kernels import BACKWARD_ATTENTION_FLOPS
from tools.physics.memory import Memory
from tools.physics.sizes import causal_keys, model_flops_per_token
from tools.physics.stage import head_time, layer_time, stage_time
from tools.physics.step import sharded_parts
from tools.physics.traffic import context_s, pipeline_s
from tools.scenario import RECOMPUTES, Scenario

Figures = Mapping[str, float]

AXES = {
    "tp": ("tp",),
    "cp": ("cp",),
    "ep": ("ep",),
    "dp": ("dp_shard", "dp_replicate", "expert_shard", "expert_replicate"),
    "pp": ("pp",),
}
"""Groups of ranks that serve an axis of the plan."""


@dataclass(frozen=True)
class Traffic:
    """A kind of collective in one group, on one rank in one step."""

    group: str
    kind: str
    messages: float
    total_bytes: float
    wire_bytes: float


def plus(one: Figures, other: Figures, factor: float) -> Figures:
    """`one + factor * other`, where a missing figure is zero."""
    return {name: one.get(name, 0.0) + factor * other.get(name, 0.0) for name in {**one, **other}}


def along(low: Figures, high: Figures, position: float) -> Figures:
    """On the line through `low` (position 0) and `high` (position 1)."""
    return plus(low, plus(high, low, -1.0), position)


def traffic_of(figures: Figures) -> list[Traffic]:
    """In order of group and kind; without what never happened."""
    groups = sorted({tuple(name.split(".")[1:3]) for name in figures if name.startswith("traffic.")})
    rows = [
        Traffic(group, kind, *(figures[f"traffic.{group}.{kind}.{what}"] for what in _COLUMNS))
        for group, kind in groups
    ]
    return [row for row in rows if row.messages]


def axis_wire_bytes(figures: Figures, axis: str) -> float:
    return sum(row.wire_bytes for row in traffic_of(figures) if row.group in AXES[axis])


_COLUMNS = ("messages", "bytes", "wire_bytes")


_UNHIDDEN = (
    *("fast_link_efficiency", "slow_link_efficiency"),
    *("tp_exposed", "ep_exposed", "pp_exposed"),
)


@dataclass(frozen=True)
class Expected:
    """Of the fullest or busiest rank; FLOPs of all ranks together."""

    flops: float
    wire_bytes: dict[str, float]
    memory_bytes: dict[str, float]
    recompute: str


def expected(scenario: Scenario) -> Expected:
    x, keys = encode([scenario])
    coefficients = resolve(keys, shipped_calibration().shifts)
    settings = memory_settings(keys.framework, [scenario.training.precision])
    costs = evaluate(x, coefficients, settings)
    x = x.with_recompute(costs.recompute[0])
    return Expected(
        flops=float(_executed_flops_per_token(x, coefficients) * x.batch * x.seq),
        wire_bytes=_wire_bytes(*_bytes_for_seconds(x, coefficients)),
        memory_bytes=_memory(costs.memory),
        recompute=RECOMPUTES[int(costs.recompute[0])],
    )


def _executed_flops_per_token(x: Inputs, c: Coefficients) -> Array:
    """Fused attention computes the scores again in backward; other attention computes the masked half too."""
    per_key = 2.0 * x.layers * x.heads * (x.qk_dim + x.v_dim)
    scores_again = (BACKWARD_ATTENTION_FLOPS - 2.0) * per_key * causal_keys(x)
    masked = per_key * (x.seq - causal_keys(x))
    forward = model_flops_per_token(x) / 3.0 + np.where(x.flash > 0, 0.0, masked)
    layers_forward = forward - 2.0 * x.vocab * x.hidden
    again = np.select([x.recompute == FULL, x.recompute == SELECTIVE], [1.0, c.selective_recompute], 0.0)
    return 3.0 * forward + np.where(x.flash > 0, scores_again, 0.0) + again * layers_forward


def _bytes_for_seconds(x: Inputs, c: Coefficients) -> tuple[Inputs, Coefficients]:
    one, none = np.ones(()), np.zeros(())
    links = replace(
        x,
        scale_up_bandwidth=one,
        scale_out_bandwidth=one,
        scale_up_latency=none,
        scale_out_latency=none,
        scale_up_size=x.devices,
        torus_dimensions=none,
        scatter_passes=one,
        flat_rings=none,
    )
    return links, replace(c, rank_latency_s=none, **dict.fromkeys(_UNHIDDEN, one))


def _wire_bytes(x: Inputs, c: Coefficients) -> dict[str, float]:
    lay = x.stages
    layer, head = layer_time(x, c, lay.moe_share), head_time(x, c)
    sent_s = pipeline_s(x, c)
    inner = stage_time(x, c, layer, lay.inner, head, np.where(x.pp > 1, 0.0, 1.0), sent_s)
    last = stage_time(x, c, layer, lay.last, head, np.ones(()), sent_s)
    micro_batches = x.micro_batches
    busiest = {name: np.maximum(getattr(inner, name), getattr(last, name)) for name in ("tp", "ep", "pp")}
    context = context_s(x, c) * np.maximum(lay.inner, lay.last)
    data = sharded_parts(x, c).traffic
    per_step = {
        "tp": busiest["tp"] * micro_batches,
        "cp": context * micro_batches,
        "ep": busiest["ep"] * micro_batches,
        "dp": data.end_scatter + data.end_gather + data.every_micro_batch * micro_batches,
        "pp": busiest["pp"] * micro_batches,
    }
    return {name: float(value) for name, value in per_step.items()}


def _memory(memory: Memory) -> dict[str, float]:
    """Activations and buffers together, as the program cannot tell them apart; without the runtime."""
    parts = {field.name: float(getattr(memory, field.name)[0]) for field in fields(memory)}
    working = parts["activations"] + parts["buffers"]
    state = {name: parts[name] for name in ("parameters", "gradients", "optimizer")}
    return {**state, "activations_and_buffers": working, "peak": sum(state.values()) + working}
