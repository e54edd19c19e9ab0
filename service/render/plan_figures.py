"""Charts of predicted plans: the device mesh and the searched space."""

from collections.abc import Sequence
from typing import NamedTuple

from service.render.charts import (
    PALETTE,
    Chart,
    Layer,
    axis,
    boxes,
    chart,
    label,
    line,
    log_axis,
    points,
    rows_axis,
)
from tools.scenario import Plan

MAX_NODES = 128
NODE_HEIGHT = 22
AXES = {
    "tp": "tensor-parallel",
    "cp": "context-parallel",
    "pp": "pipeline-stage",
    "dp": "data-parallel",
    "dp_shard": "ZeRO shard",
    "ep": "expert-parallel",
}
SHOWN_QUANTILE = 0.98
"""The slowest of the searched plans are cut off."""
FAR = 2.0
"""A memory limit this many times above every plan is not drawn: it would squeeze them together."""


def axes_of(plan: Plan) -> dict[str, str]:
    """The degrees above one, which are worth a picture; tensor parallelism if there is none."""
    degrees = {"tp": plan.tp, "cp": plan.cp, "pp": plan.pp, "dp": plan.dp, "ep": plan.ep}
    degrees["dp_shard"] = plan.dp_shard if plan.is_hybrid_sharded else 1
    return {key: name for key, name in AXES.items() if degrees[key] > 1} or {"tp": AXES["tp"]}


def mesh_chart(plan: Plan, num_devices: int, devices_per_node: int, by: str) -> Chart:
    """A cell per device, a row per node; devices of one colour communicate with each other."""
    columns = min(devices_per_node, num_devices)
    nodes = min(-(-num_devices // columns), MAX_NODES)
    ranks = range(min(nodes * columns, num_devices))
    groups = [group_of(plan, rank, by) for rank in ranks]
    texts = [
        f"rank {rank} of node {rank // columns}: {place_of(plan, rank)}\n{AXES[by]} group {group}"
        for rank, group in zip(ranks, groups, strict=True)
    ]
    left = [rank % columns - 0.5 for rank in ranks]
    cells = boxes("", left, [x + 1 for x in left], [rank // columns for rank in ranks], texts)
    cells["labels"] = [str(rank) for rank in ranks]
    cells["colours"] = [PALETTE[group % len(PALETTE)] for group in groups]
    meaning = f"one colour is one {AXES[by]} group"
    meaning += ": each device is its own" if len(set(groups)) == len(groups) else ""
    x = axis(f"device of the node; {meaning}", [], "count") | {"low": -0.5, "high": columns - 0.5}
    y = rows_axis([f"node {node}" for node in range(nodes)])
    return chart(x, y, 60 + NODE_HEIGHT * max(nodes, 2), [cells])


def coordinates(plan: Plan, rank: int) -> tuple[int, int, int, int]:
    """Tensor, context, data, pipeline."""
    tensor, rest = rank % plan.tp, rank // plan.tp
    context, rest = rest % plan.cp, rest // plan.cp
    return tensor, context, rest % plan.dp, rest // plan.dp


def place_of(plan: Plan, rank: int) -> str:
    tensor, context, data, stage = coordinates(plan, rank)
    return f"tp {tensor}, cp {context}, dp {data}, pp {stage}"


def group_of(plan: Plan, rank: int, by: str) -> int:
    """The number of the rank's group along one of AXES."""
    tensor, context, data, stage = coordinates(plan, rank)
    shard = (data * plan.cp + context) // plan.dp_shard
    shards = -(-plan.dp * plan.cp // plan.dp_shard)
    return {
        "tp": rank // plan.tp,
        "cp": (stage * plan.dp + data) * plan.tp + tensor,
        "pp": stage,
        "dp": stage * plan.tp + tensor,
        "dp_shard": (stage * shards + shard) * plan.tp + tensor,
        "ep": rank // (plan.ep * plan.etp) * plan.etp + rank % plan.etp,
    }[by]


class PlanDot(NamedTuple):
    memory_gib: float
    step_time_s: float
    label: str


class SearchedSpace(NamedTuple):
    """What the scatter plot of the search shows; every list may be empty."""

    plans: Sequence[PlanDot]
    front: Sequence[PlanDot]
    """Fastest first."""
    proposals: Sequence[PlanDot] = ()
    today: Sequence[PlanDot] = ()
    considered: Sequence[PlanDot] = ()
    """Plans of a playbook, a language model or an engineer."""
    limit_gib: float = 0.0


def space_chart(space: SearchedSpace) -> Chart:
    # Drawn as steps: between two plans of the front no plan is better than both.
    front = _dots("front", space.front, "--accent", 5)
    steps = line("", front["x"], front["y"], "solid", "--accent") | {"is_stepped": True}
    # Each with its rank inside; the first drawn last, over the others.
    ranked = _dots("proposals", space.proposals[::-1], "--accent", 20)
    ranked["labels"] = [str(rank) for rank in range(len(space.proposals), 0, -1)]
    layers = [
        _dots("plans", space.plans, "--soft", 4) | {"opacity": 0.5},
        steps,
        front,
        _dots("also considered", space.considered, "--ink", 9) | {"shape": "cross"},
        _dots("today", space.today, "--ink", 12) | {"shape": "diamond"},
        ranked,
    ]
    pinned = (*space.today, *space.considered, *space.proposals)
    memory = [dot.memory_gib for dot in (*space.plans, *space.front, *pinned)]
    if space.limit_gib and space.limit_gib <= FAR * max(memory, default=1.0):
        memory.append(space.limit_gib)
    # From the fastest plan to the slowest that runs today or was submitted; slower ones are cut off.
    times = sorted(dot.step_time_s for dot in (*space.plans, *space.proposals))
    shown = times[: int(SHOWN_QUANTILE * (len(times) - 1)) + 1] + [dot.step_time_s for dot in pinned]
    x, y = axis("peak memory, GiB", memory), log_axis("step time, s", shown)
    limits = [space.limit_gib] if space.limit_gib else []
    return chart(x, y, 440, [layer for layer in layers if layer["x"]], limits)


def _dots(name: str, dots: Sequence[PlanDot], colour: str, size: float) -> Layer:
    x, y = [round(dot.memory_gib, 3) for dot in dots], [round(dot.step_time_s, 5) for dot in dots]
    texts = [f"{name}: {label(dot.label)}\n{dot.step_time_s:.4g} s, {dot.memory_gib:.1f} GiB" for dot in dots]
    return points(name, x, y, texts, colour, size)
