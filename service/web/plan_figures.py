"""Figures of plans: everything here is predicted."""

from service.api.turns import in_turn
from service.web.asked import Asked
from service.web.figures.canvas import Figure
from service.web.figures.collectives import Transfer, collectives_figure
from service.web.figures.mesh import AXES, axes_of, mesh_figure
from service.web.figures.roofline import Point, roofline_figure
from service.web.figures.space import space_figure
from service.web.figures.stacks import memory_figure, step_time_figure
from service.web.space import search_dots, space_of
from tools.cost.messages import list_messages
from tools.cost.operations import list_operations
from tools.hardware import get_device

COLOURS = {axis: f"--{axis}_comm_exposed" for axis in ("tp", "cp", "ep", "dp", "pp")}


def step(asked: Asked) -> Figure:
    return step_time_figure(asked.view.plans)


def memory(asked: Asked) -> Figure:
    return memory_figure(asked.view.plans, asked.view.limit_gib, asked.view.capacity_gib)


def space(asked: Asked) -> Figure:
    key = f"{asked.shown.row.id}.{asked.shown.row.attempt}"
    dots = asked.searched.find(key)
    if dots is None:
        workload = asked.workload
        dots = in_turn(asked.parts, lambda progress: search_dots(workload, progress))
        asked.searched.keep(key, dots)
    return space_figure(space_of(asked.view, dots))


def mesh(asked: Asked) -> Figure:
    plan, cluster = asked.chosen, asked.workload.scenario.cluster
    by = asked.by if asked.by in AXES else next(iter(axes_of(plan)))
    return mesh_figure(plan, cluster.num_devices, cluster.devices_per_node, by)


def roofline(asked: Asked) -> Figure:
    scenario = asked.scenario
    points = [
        Point(one.name, one.intensity, one.flops_per_s, one.seconds, one.shape)
        for one in list_operations(scenario)
    ]
    device = get_device(scenario.cluster.device, scenario.cluster.overrides)
    return roofline_figure(points, device, [scenario.training.precision])


def collectives(asked: Asked) -> Figure:
    scenario = asked.scenario
    device = get_device(scenario.cluster.device, scenario.cluster.overrides)
    transfers = [
        Transfer(
            AXES.get(one.axis, one.axis),
            one.message_bytes,
            one.bus_bytes_per_s,
            f"{one.kind} over {one.group_size} {'across' if one.crosses_nodes else 'inside'} nodes",
            COLOURS.get(one.axis, "--host_and_other"),
        )
        for one in list_messages(scenario)
    ]
    links = [
        ("inside the node", device.intra_node_bytes_per_s),
        ("between nodes", device.inter_node_bytes_per_s),
    ]
    return collectives_figure(transfers, links)
