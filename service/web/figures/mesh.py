"""The device mesh: which ranks form which group, and how the groups lie over the nodes.

Ranks are ordered tensor, context, data, pipeline, as in Megatron-Core and as the cost model places them
(tools/cost/collectives.py); experts are consecutive ranks.
"""

from collections.abc import Callable, Mapping

from service.web.figures.canvas import Figure, axis, frame
from tools.scenario import Plan

MOST_NODES = 128
MOST_WRITTEN = 32
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
    """The degrees above one, which are worth a picture; tensor parallelism where there is none."""
    degrees = {"tp": plan.tp, "cp": plan.cp, "pp": plan.pp, "dp": plan.dp, "ep": plan.ep}
    degrees["dp_shard"] = plan.dp_shard if plan.zero_stage and plan.dp_shard < plan.dp * plan.cp else 1
    return {key: name for key, name in AXES.items() if degrees[key] > 1} or {"tp": AXES["tp"]}


def mesh_figure(plan: Plan, num_devices: int, devices_per_node: int, by: str) -> Figure:
    """A cell a device, a row a node; devices of one colour talk to each other."""
    group_of = GROUPS[by]
    columns = min(devices_per_node, num_devices)
    nodes = min(-(-num_devices // columns), MOST_NODES)
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
        "hovertext": [[_says(plan, rank) for rank in row] for row in ranks],
        "customdata": groups,
        "zmin": 0,
        "zmax": 1,
        "zsmooth": False,
        "colorscale": _SCALE,
        "showscale": False,
        "xgap": 2,
        "ygap": 2,
        "texttemplate": "%{text}" if nodes <= MOST_WRITTEN and columns <= MOST_WRITTEN else "",
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


def _says(plan: Plan, rank: int) -> str:
    tensor, context, data, stage = coordinates(plan, rank)
    return f"rank {rank}: tp {tensor}, cp {context}, dp {data}, pp {stage}"


def _spread(count: int) -> list[float]:
    """Neighbouring groups in colours far apart: multiples of the golden ratio never crowd."""
    return [round(index * 0.6180339887 % 1.0, 4) for index in range(count)]


def _tick(nodes: int) -> int:
    return max(1, nodes // 16)
