"""/topology: the devices of a plan as nodes and fast-link domains; the peers of one rank with what they send.

Nodes that look alike are folded, so that sixteen thousand devices fit on a page.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Query, Response
from fastapi.responses import RedirectResponse

from service.errors import NotFoundError
from service.render.plan_figures import AXES, coordinates, place_of
from service.render.text import bytes_of
from service.render.view import TODAY
from service.sessions.pages.compare import PLANS
from service.sessions.pages.view import open_session
from service.web.errors import PageRoute
from service.web.rendering import ReaderPage
from tools.errors import InputError
from tools.model.operations import Message, list_messages, messages_per_step
from tools.recommend.words import short
from tools.recommend.workload import Workload
from tools.scenario import Plan, Scenario
from tools.scenario.limits import scale_up_size

MAX_BOXES = 240
"""Nodes drawn on one page, after folding."""
MAX_LISTED = 12
OF_EXPERTS = "dp of experts"
NAMES = {**AXES, OF_EXPERTS: "data-parallel, experts"}

router = APIRouter(route_class=PageRoute)


@router.get("/topology")
def show(
    page: ReaderPage,
    session: Annotated[str | None, Query(max_length=64)] = None,
    plan: Annotated[str, Query(max_length=10)] = "1",
    rank: Annotated[int, Query(ge=0)] = 0,
) -> Response:
    if session is None:  # a topology is that of a session's plan
        return RedirectResponse("/", 303)
    shown, view = open_session(page, session, "it has no plan to draw yet")
    chosen = view.find_plan(plan)
    if chosen is None:
        raise NotFoundError("plan of today" if plan == TODAY else "proposal", plan)
    topology = Topology(view.workload, chosen, rank)
    if rank >= topology.num_devices:
        raise InputError("rank", rank, f"allowed: 0 to {topology.num_devices - 1}")
    domains, more = topology.shown()
    return page(
        "topology",
        session=shown,
        tab="topology",
        topology=topology,
        domains=domains,
        more=more,
        summary=short(chosen),
        which=plan,
        plans={key: name for key, name in PLANS.items() if view.find_plan(key) is not None},
        axes={axis: NAMES[axis] for axis in peers(chosen, rank)},
    )


def peers(plan: Plan, rank: int) -> dict[str, list[int]]:
    """The ranks of each group that the rank belongs to, itself included, by axis; groups of one are left out.

    Ranks count tensor first, then context, data and pipeline, as in Megatron and torchtitan.
    """
    tensor, context, data, stage = coordinates(plan, rank)
    inner, replica, expert = plan.tp * plan.cp, plan.tp * plan.cp * plan.dp, plan.ep * plan.etp
    first = rank - tensor - context * plan.tp - data * inner  # of the pipeline stage
    experts = rank // expert * expert + rank % plan.etp
    groups = {
        "tp": [rank - tensor + place for place in range(plan.tp)],
        "cp": [rank - context * plan.tp + place * plan.tp for place in range(plan.cp)],
        "ep": [experts + place * plan.etp for place in range(plan.ep)],
        "dp": [first + tensor + context * plan.tp + place * inner for place in range(plan.dp)],
        "pp": [rank - stage * replica + place * replica for place in range(plan.pp)],
    }
    if plan.ep > 1:
        groups[OF_EXPERTS] = list(range(first + (rank - first) % expert, first + replica, expert))
    return {axis: ranks for axis, ranks in groups.items() if len(ranks) > 1}


class Cell(NamedTuple):
    """One device: where it stands in its node and what it is to the chosen rank."""

    place: int
    axis: str


class DrawnNode(NamedTuple):
    """Nodes in a row that look alike."""

    first: int
    cells: tuple[Cell, ...]
    stages: str
    alike: int


class Domain(NamedTuple):
    """Fast-link domains in a row that look alike."""

    first: int
    nodes: tuple[DrawnNode, ...]
    alike: int
    num_devices: int


@dataclass(frozen=True)
class Peering:
    """One kind of message between the chosen rank and its peers on an axis."""

    name: str
    degree: str
    """The degree of the plan that messages on the axis belong to."""
    ranks: Sequence[int]
    message: Message
    per_step: float
    exposed_s: float

    @property
    def listed(self) -> str:
        few = ", ".join(map(str, self.ranks[:MAX_LISTED]))
        return few if len(self.ranks) <= MAX_LISTED else f"{few} and {len(self.ranks) - MAX_LISTED:,} more"


@dataclass(frozen=True)
class Topology:
    workload: Workload
    plan: Plan
    rank: int

    @property
    def scenario(self) -> Scenario:
        return self.workload.with_plan(self.plan)

    @property
    def num_devices(self) -> int:
        return self.scenario.cluster.num_devices

    @property
    def domain_size(self) -> int:
        size = int(scale_up_size(self.scenario.cluster, self.workload.device))
        return max(min(size, self.num_devices), self.node_size)

    @property
    def node_size(self) -> int:
        return min(self.scenario.cluster.devices_per_node, self.num_devices)

    @property
    def torus(self) -> str:
        sides = self.scenario.cluster.topology.torus_dimensions if self.scenario.cluster.topology else None
        if sides:
            return f"torus of {' × '.join(map(str, sides))}"
        count = self.workload.device.torus_dimensions
        return f"torus of {count} dimensions" if count else ""

    @property
    def place(self) -> str:
        return place_of(self.plan, self.rank)

    def shown(self) -> tuple[list[Domain], int]:
        """Folded domains that fit on the page, and how many nodes do not."""
        node_size, domain_size, folded = self.node_size, self.domain_size, list[Domain]()
        per_stage = self.plan.tp * self.plan.cp * self.plan.dp
        groups = peers(self.plan, self.rank)
        axis_of = {rank: axis for axis, ranks in reversed(groups.items()) for rank in ranks}
        axis_of[self.rank] = "own"

        def node(start: int, ends_at: int) -> DrawnNode:
            ranks = range(start, min(start + node_size, ends_at))
            cells = tuple(Cell(rank - start, axis_of.get(rank, "")) for rank in ranks)
            stages = sorted({str(ranks[0] // per_stage), str(ranks[-1] // per_stage)}, key=int)
            return DrawnNode(start, cells, " to ".join(stages), 1)

        for first in range(0, self.num_devices, domain_size):
            ends_at = min(first + domain_size, self.num_devices)
            every = [node(start, ends_at) for start in range(first, ends_at, node_size)]
            runs = groupby(every, key=lambda node: (node.cells, node.stages))
            nodes = tuple(next(alike)._replace(alike=1 + sum(1 for _ in alike)) for _, alike in runs)
            last = folded[-1] if folded else None
            if last and [node[1:] for node in last.nodes] == [node[1:] for node in nodes]:
                folded[-1] = last._replace(alike=last.alike + 1)
            else:
                folded.append(Domain(first // domain_size, nodes, 1, ends_at - first))
        boxes, drawn = 0, list[Domain]()
        for domain in folded:
            boxes += len(domain.nodes)
            if boxes > MAX_BOXES and drawn:
                break
            drawn.append(domain)
        left = sum(domain.alike * domain.num_devices for domain in folded[len(drawn) :])
        return drawn, left // node_size

    @property
    def links(self) -> tuple[str, str]:
        """Inside a domain and between domains."""
        device = self.workload.device
        fast, slow = bytes_of(device.intra_node_bytes_per_s), bytes_of(device.inter_node_bytes_per_s)
        return f"{'torus' if self.torus else 'fast links'}, {fast}/s", f"network, {slow}/s"

    def peerings(self) -> list[Peering]:
        groups = peers(self.plan, self.rank)
        breakdown_s = self.workload.predict([self.plan])[0].breakdown_s
        peerings = []
        for message in list_messages(self.scenario, self.workload.calibration):
            degree = "dp" if message.axis == OF_EXPERTS else message.axis
            peering = Peering(
                NAMES[message.axis],
                degree,
                groups.get(message.axis, [self.rank]),
                message,
                messages_per_step(self.scenario, message),
                breakdown_s.get(f"{degree}_comm_exposed", 0.0),
            )
            peerings.append(peering)
        return peerings
