"""/topology: the devices of a plan as nodes and fast-link domains; the peers of one rank with what they send.

Nodes that look alike are folded, so that sixteen thousand devices fit on a page.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Query, Request, Response

from service.api.deps import AppDep, Reader
from service.errors import NotFoundError
from service.render.plan_figures import AXES, coordinates
from service.render.text import bytes_of, seconds
from service.render.view import TODAY, get_view
from service.web.compare import PLANS
from service.web.rendering import PageRoute, page
from service.web.session_view import SessionPage
from tools.cost.operations import Message, list_messages, messages_per_step
from tools.errors import InputError
from tools.recommend.words import short
from tools.recommend.workload import Workload
from tools.scenario import Plan, Scenario
from tools.scenario.limits import scale_up_size

MAX_BOXES = 240
"""Of nodes on one page, after folding."""
MAX_LISTED = 12
OF_EXPERTS = "dp of experts"
NAMES = {**AXES, OF_EXPERTS: "data-parallel, experts"}
EXPOSED = {"tp": "tp_comm_exposed", "cp": "cp_comm_exposed", "pp": "pp_comm_exposed", "ep": "ep_comm_exposed",
           "dp": "dp_comm_exposed"}  # fmt: skip


def peers(plan: Plan, rank: int) -> dict[str, list[int]]:
    """The ranks of each group that the rank belongs to, itself included, by axis; groups of one are left out.

    Ranks count tensor first, then context, data and pipeline, as in Megatron and torchtitan.
    """
    tensor, context, data, stage = coordinates(plan, rank)
    inner, replica = plan.tp * plan.cp, plan.tp * plan.cp * plan.dp
    first = rank - tensor - context * plan.tp - data * inner  # of the pipeline stage
    experts = rank // (plan.ep * plan.etp) * (plan.ep * plan.etp) + rank % plan.etp
    groups = {
        "tp": [rank - tensor + place for place in range(plan.tp)],
        "cp": [rank - context * plan.tp + place * plan.tp for place in range(plan.cp)],
        "ep": [experts + place * plan.etp for place in range(plan.ep)],
        "dp": [first + tensor + context * plan.tp + place * inner for place in range(plan.dp)],
        "pp": [rank - stage * replica + place * replica for place in range(plan.pp)],
    }
    if plan.ep > 1:
        groups[OF_EXPERTS] = list(
            range(first + (rank - first) % (plan.ep * plan.etp), first + replica, plan.ep * plan.etp)
        )
    return {axis: ranks for axis, ranks in groups.items() if len(ranks) > 1}


class Cell(NamedTuple):
    """One device: where it stands in its node and what it is to the chosen rank."""

    place: int
    axis: str


class Node(NamedTuple):
    """Nodes in a row that look alike."""

    first: int
    cells: tuple[Cell, ...]
    stages: str
    alike: int


class Domain(NamedTuple):
    """Fast-link domains in a row that look alike."""

    first: int
    nodes: tuple[Node, ...]
    alike: int
    num_devices: int


@dataclass(frozen=True)
class Peering:
    """One kind of message between the chosen rank and its peers on an axis."""

    axis: str
    ranks: Sequence[int]
    message: Message
    per_step: float
    exposed_s: float
    fast: str
    slow: str

    @property
    def name(self) -> str:
        return NAMES[self.axis]

    @property
    def listed(self) -> str:
        few = ", ".join(map(str, self.ranks[:MAX_LISTED]))
        return few if len(self.ranks) <= MAX_LISTED else f"{few} and {len(self.ranks) - MAX_LISTED:,} more"

    @property
    def bytes_per_step(self) -> str:
        return bytes_of(self.message.message_bytes * self.per_step)

    @property
    def seconds_per_step(self) -> str:
        return seconds(self.message.seconds * self.per_step)

    @property
    def link(self) -> str:
        return self.slow if self.message.crosses_nodes else self.fast


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
        tensor, context, data, stage = coordinates(self.plan, self.rank)
        return f"tp {tensor}, cp {context}, dp {data}, pp {stage}"

    def domains(self) -> list[Domain]:
        """Folded; at most MAX_BOXES nodes are drawn."""
        folded: list[Domain] = []
        for first in range(0, self.num_devices, self.domain_size):
            ends_at = min(first + self.domain_size, self.num_devices)
            nodes = tuple(_folded(self._nodes(first, ends_at)))
            last = folded[-1] if folded else None
            if last and [node[1:] for node in last.nodes] == [node[1:] for node in nodes]:
                folded[-1] = last._replace(alike=last.alike + 1)
            else:
                folded.append(Domain(first // self.domain_size, nodes, 1, ends_at - first))
        return folded

    def shown(self) -> tuple[list[Domain], int]:
        """What fits on the page, and how many nodes do not."""
        drawn: list[Domain] = []
        boxes = 0
        domains = self.domains()
        for domain in domains:
            if boxes + len(domain.nodes) > MAX_BOXES and drawn:
                break
            boxes += len(domain.nodes)
            drawn.append(domain)
        left = sum(domain.alike * domain.num_devices for domain in domains[len(drawn) :])
        return drawn, left // self.node_size

    def _nodes(self, first: int, ends_at: int) -> Iterator[Node]:
        axis_of = {
            rank: axis for axis, ranks in reversed(peers(self.plan, self.rank).items()) for rank in ranks
        }
        axis_of[self.rank] = "own"
        per_stage = self.plan.tp * self.plan.cp * self.plan.dp
        for start in range(first, ends_at, self.node_size):
            ranks = range(start, min(start + self.node_size, ends_at))
            cells = tuple(Cell(rank - start, axis_of.get(rank, "")) for rank in ranks)
            from_stage, to_stage = ranks[0] // per_stage, ranks[-1] // per_stage
            stages = str(from_stage) if from_stage == to_stage else f"{from_stage} to {to_stage}"
            yield Node(start, cells, stages, 1)

    def peerings(self) -> list[Peering]:
        device, groups = self.workload.device, peers(self.plan, self.rank)
        prediction = self.workload.predict([self.plan])[0]
        fast = f"{'torus' if self.torus else 'fast links'}, {bytes_of(device.intra_node_bytes_per_s)}/s"
        slow = f"network, {bytes_of(device.inter_node_bytes_per_s)}/s"
        return [
            Peering(
                message.axis,
                groups.get(message.axis, [self.rank]),
                message,
                messages_per_step(self.scenario, message),
                prediction.breakdown_s.get(EXPOSED[message.axis.partition(" ")[0]], 0.0),
                fast,
                slow,
            )
            for message in list_messages(self.scenario, self.workload.calibration)
        ]


def _folded(nodes: Iterator[Node]) -> Iterator[Node]:
    for _, alike in groupby(nodes, key=lambda node: (node.cells, node.stages)):
        run = list(alike)
        yield run[0]._replace(alike=len(run))


router = APIRouter(route_class=PageRoute)


@router.get("/topology")
def show(
    request: Request,
    app: AppDep,
    caller: Reader,
    session: Annotated[str, Query(max_length=64)],
    plan: Annotated[str, Query(max_length=10)] = "1",
    rank: Annotated[int, Query(ge=0)] = 0,
) -> Response:
    row = app.sessions.get(caller, session)
    view = get_view(row, "it has no plan to draw yet")
    chosen = view.find_plan(plan)
    if chosen is None:
        raise NotFoundError("plan of today" if plan == TODAY else "proposal", plan)
    topology = Topology(view.workload, chosen, rank)
    if rank >= topology.num_devices:
        raise InputError("rank", rank, f"allowed: 0 to {topology.num_devices - 1}")
    domains, more = topology.shown()
    return page(
        request,
        "topology",
        caller,
        session=SessionPage(row, view),
        tab="topology",
        topology=topology,
        domains=domains,
        more=more,
        summary=short(chosen),
        which=plan,
        plans={key: name for key, name in PLANS.items() if view.find_plan(key) is not None},
        axes={axis: AXES[axis] for axis in peers(chosen, rank) if axis in AXES},
    )
