"""Plotly figures of predicted plans: the device mesh and the searched space."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from service.render.plotly import Figure, PlotlyJson, axis, frame, label, upright
from tools.scenario import Plan

MAX_NODES = 128
MAX_LABELLED = 32
ROW_HEIGHT = 22
AXES = {
    "tp": "tensor-parallel",
    "cp": "context-parallel",
    "pp": "pipeline-stage",
    "dp": "data-parallel",
    "dp_shard": "ZeRO shard",
    "ep": "expert-parallel",
}
_SCALE = [
    [0.0, "--compute"], [0.2, "--memory_bound_ops"], [0.4, "--dp_comm_exposed"],
    [0.6, "--tp_comm_exposed"], [0.8, "--ep_comm_exposed"], [1.0, "--optimizer"],
]  # fmt: skip


def axes_of(plan: Plan) -> dict[str, str]:
    """The degrees above one, which are worth a picture; tensor parallelism if there is none."""
    degrees = {"tp": plan.tp, "cp": plan.cp, "pp": plan.pp, "dp": plan.dp, "ep": plan.ep}
    degrees["dp_shard"] = plan.dp_shard if plan.is_hybrid_sharded else 1
    return {key: name for key, name in AXES.items() if degrees[key] > 1} or {"tp": AXES["tp"]}


def mesh_figure(plan: Plan, num_devices: int, devices_per_node: int, by: str) -> Figure:
    """A cell per device, a row per node; devices of one colour communicate with each other."""
    group_of = GROUPS[by]
    columns = min(devices_per_node, num_devices)
    nodes = min(-(-num_devices // columns), MAX_NODES)
    ranks = [
        [node * columns + place for place in range(columns) if node * columns + place < num_devices]
        for node in range(nodes)
    ]
    groups = [[group_of(plan, rank) for rank in row] for row in ranks]
    colours = _spread(max(max(row) for row in groups) + 1)
    data = {
        "type": "heatmap",
        "z": [[colours[group] for group in row] for row in groups],
        "text": [[str(rank) for rank in row] for row in ranks],
        "hovertext": [[_describe_rank(plan, rank) for rank in row] for row in ranks],
        "customdata": groups,
        "zmin": 0,
        "zmax": 1,
        "zsmooth": False,
        "colorscale": _SCALE,
        "showscale": False,
        "xgap": 2,
        "ygap": 2,
        "texttemplate": "%{text}" if nodes <= MAX_LABELLED and columns <= MAX_LABELLED else "",
        "hovertemplate": "%{hovertext}<br>" + AXES[by] + " group %{customdata}<extra>node %{y}</extra>",
    }
    layout = frame("device of the node", "node", 90 + ROW_HEIGHT * nodes)
    alone = len({group for row in groups for group in row}) == sum(map(len, groups))
    meaning = f"{AXES[by]} group" + (": each device is its own" if alone else "")
    layout["xaxis"] = axis(f"device of the node; one colour is one {meaning}") | {
        "dtick": 1 if columns <= 16 else 8,
        "showgrid": False,
    }
    layout["yaxis"] = axis("node") | {"autorange": "reversed", "dtick": _tick(nodes), "showgrid": False}
    return {"data": [data], "layout": layout}


def coordinates(plan: Plan, rank: int) -> tuple[int, int, int, int]:
    """Tensor, context, data, pipeline."""
    tensor, rest = rank % plan.tp, rank // plan.tp
    context, rest = rest % plan.cp, rest // plan.cp
    return tensor, context, rest % plan.dp, rest // plan.dp


def _data_group(plan: Plan, rank: int) -> int:
    tensor, _, _, stage = coordinates(plan, rank)
    return stage * plan.tp + tensor


def _shard_group(plan: Plan, rank: int) -> int:
    tensor, context, data, stage = coordinates(plan, rank)
    shard = (data * plan.cp + context) // plan.dp_shard
    return (stage * -(-plan.dp * plan.cp // plan.dp_shard) + shard) * plan.tp + tensor


def _context_group(plan: Plan, rank: int) -> int:
    tensor, _, data, stage = coordinates(plan, rank)
    return (stage * plan.dp + data) * plan.tp + tensor


GROUPS: Mapping[str, Callable[[Plan, int], int]] = {
    "tp": lambda plan, rank: rank // plan.tp,
    "cp": _context_group,
    "pp": lambda plan, rank: coordinates(plan, rank)[3],
    "dp": _data_group,
    "dp_shard": _shard_group,
    "ep": lambda plan, rank: rank // (plan.ep * plan.etp) * plan.etp + rank % plan.etp,
}


def _describe_rank(plan: Plan, rank: int) -> str:
    tensor, context, data, stage = coordinates(plan, rank)
    return f"rank {rank}: tp {tensor}, cp {context}, dp {data}, pp {stage}"


def _spread(count: int) -> list[float]:
    """Neighbouring groups in colours far apart: multiples of the golden ratio never crowd."""
    return [round(index * 0.6180339887 % 1.0, 4) for index in range(count)]


def _tick(nodes: int) -> int:
    return max(1, nodes // 16)


SHOWN_QUANTILE = 0.98
FAR = 2.0


@dataclass(frozen=True)
class Dot:
    memory_gib: float
    step_time_s: float
    says: str


@dataclass(frozen=True)
class Space:
    """What the scatter plot of the search shows; every list may be empty."""

    plans: Sequence[Dot]
    front: Sequence[Dot]
    """Fastest first."""
    proposals: Sequence[Dot] = ()
    today: Sequence[Dot] = ()
    considered: Sequence[Dot] = ()
    """Plans of a playbook, a language model or an engineer."""
    limit_gib: float = 0.0


def space_figure(space: Space) -> Figure:
    data = [
        _dots("plans", space.plans, {"color": "--soft", "size": 4, "opacity": 0.5}),
        _front(space.front),
        _dots("also considered", space.considered, {"color": "--ink", "size": 9, "symbol": "x-open"}),
        _dots("today", space.today, {"color": "--ink", "size": 12, "symbol": "diamond"}),
        _proposals(space.proposals),
    ]
    layout = frame("peak memory, GiB", "step time, s", 440)
    layout["shapes"] = [upright(space.limit_gib, "dash")] if space.limit_gib else []
    layout["xaxis"] |= {"range": _memory_shown(space)}
    layout["yaxis"] |= {"range": _seconds_shown(space)}
    return {"data": [trace for trace in data if trace["x"]], "layout": layout}


def _seconds_shown(space: Space) -> list[float]:
    """From the fastest plan to the slowest that runs today or was submitted; slower ones are cut off."""
    times = sorted(dot.step_time_s for dot in (*space.plans, *space.proposals))
    known = [dot.step_time_s for dot in (*space.today, *space.considered, *space.proposals)]
    slowest = times[int(SHOWN_QUANTILE * (len(times) - 1))] if times else 1.0
    return _with_room(min([*times, *known], default=0.0), max([slowest, *known]))


def _memory_shown(space: Space) -> list[float]:
    """Includes the limit, unless it is so far off that the plans would be squeezed together."""
    dots = (*space.plans, *space.front, *space.proposals, *space.today, *space.considered)
    low, high = (
        min((dot.memory_gib for dot in dots), default=0.0),
        max((dot.memory_gib for dot in dots), default=1.0),
    )
    return _with_room(low, max(high, space.limit_gib) if space.limit_gib <= FAR * high else high)


def _with_room(low: float, high: float) -> list[float]:
    room = 0.06 * (high - low) or 0.1 * high
    return [max(0.0, low - room), high + room]


def _dots(name: str, dots: Sequence[Dot], marker: PlotlyJson) -> PlotlyJson:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [round(dot.memory_gib, 3) for dot in dots],
        "y": [round(dot.step_time_s, 5) for dot in dots],
        "text": [label(dot.says) for dot in dots],
        "hovertemplate": "%{text}<br>%{y:.4g} s, %{x:.1f} GiB<extra>" + name + "</extra>",
        "marker": marker,
    }


def _front(front: Sequence[Dot]) -> PlotlyJson:
    """Drawn as steps: between two of its plans no plan is better than both."""
    dots = _dots("front", front, {"color": "--accent", "size": 5})
    return dots | {"mode": "lines+markers", "line": {"color": "--accent", "width": 1.5, "shape": "vh"}}


def _proposals(proposals: Sequence[Dot]) -> PlotlyJson:
    """The first drawn last, over the others."""
    dots = _dots(
        "proposals",
        proposals[::-1],
        {"color": "--accent", "size": 20, "line": {"color": "--page", "width": 1}},
    )
    ranks = [str(rank) for rank in range(len(proposals), 0, -1)]
    summaries = dots.pop("text")
    return dots | {
        "mode": "markers+text",
        "text": ranks,
        "textfont": {"color": "--on-accent", "size": 12},
        "customdata": summaries,
        "hovertemplate": "%{customdata}<br>%{y:.4g} s, %{x:.1f} GiB<extra>proposal %{text}</extra>",
    }
