"""Where a plan's ranks lie, who talks to whom, and that any number of devices fits on a page."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.sessions.model import SessionRow
from service.sessions.pages.topology import MAX_BOXES, NAMES, OF_EXPERTS, Topology, peers
from service.sessions.pages.view import SessionView
from tests.unit.physics.scenes import EXPERTS
from tests.unit.service.served import SCENARIO, Served
from tests.unit.service.web.browsing import get
from tests.unit.service.web.drawn import drawn
from tools.recommend.optimize import workload_of
from tools.scenario import parse_scenario

DEGREES = {"tp": 8, "pp": 4, "cp": 1, "zero_stage": 1, "micro_batch_size": 1}
degree = st.sampled_from([1, 2, 4])


def topology(num_devices: int, rank: int = 0, device: str = "h100-sxm-80gb", **degrees: int) -> Topology:
    sharded = {**DEGREES, **degrees}
    plan = {**sharded, "dp": num_devices // (sharded["tp"] * sharded["pp"] * sharded["cp"])}
    parts = {
        "cluster": {"device": device, "num_devices": num_devices},
        "training": {**SCENARIO["training"], "global_batch_size": num_devices},
        "plan": plan,
    }
    scenario = parse_scenario({**SCENARIO, **parts})
    assert scenario.plan
    return Topology(workload_of(scenario), scenario.plan, rank)


@given(st.integers(0, 63), degree, degree)
def test_peers_know_each_other_and_groups_have_the_size_of_their_degree(rank: int, tp: int, pp: int) -> None:
    plan = topology(64, tp=tp, pp=pp).plan
    for axis, ranks in peers(plan, rank).items():
        assert rank in ranks
        assert len(ranks) == getattr(plan, axis)
        assert all(peers(plan, other)[axis] == ranks for other in ranks)


@pytest.mark.parametrize(
    ("num_devices", "device"), [(16_384, "h100-sxm-80gb"), (9216, "gb200"), (64, "h100")]
)
@pytest.mark.parametrize("rank", [0, 37])
def test_every_device_is_drawn_or_folded_and_the_page_stays_readable(
    num_devices: int, device: str, rank: int
) -> None:
    drawn = topology(num_devices, rank, device)
    domains, more = drawn.shown()
    boxes = [(node, domain.alike) for domain in domains for node in domain.nodes]
    assert len(boxes) <= MAX_BOXES
    shown = sum(len(node.cells) * node.alike * count for node, count in boxes)
    assert shown + more * drawn.node_size == num_devices
    own = [node.first + cell.place for node, _ in boxes for cell in node.cells if cell.axis == "own"]
    assert own == [rank]


def test_bytes_inside_and_between_domains_add_up_and_no_link_is_faster_than_it_is() -> None:
    """Of experts too: Mixtral's eight, two to a rank, over tp 4: their groups are drawn and named."""
    model = {**SCENARIO["model"], **EXPERTS}
    parts = {"cluster": {"device": "h100-sxm-80gb", "num_devices": 64}, "model": model}
    plan = {"tp": 4, "pp": 2, "cp": 1, "ep": 4, "dp": 8, "zero_stage": 1, "micro_batch_size": 1}
    scenario = parse_scenario({**SCENARIO, **parts, "plan": plan})
    assert scenario.plan
    page = Topology(workload_of(scenario), scenario.plan, 0)
    crossing = 0
    for peering in page.peerings():
        message, device = peering.message, page.workload.device
        assert message.inside_bytes + message.outside_bytes == pytest.approx(message.sent_bytes)
        assert message.inside_bytes <= message.seconds * device.intra_node_bytes_per_s
        assert message.outside_bytes <= message.seconds * device.inter_node_bytes_per_s
        assert (message.outside_bytes > 0) == message.crosses_nodes
        crossing += message.inside_bytes > 0 and message.crosses_nodes
    assert crossing, "some of it goes both ways"
    content: dict[str, object] = {"session": SessionView(SessionRow(attempt=1), None)}
    content |= {"tab": "topology", "topology": page}
    domains, more = page.shown()
    names = {axis: NAMES[axis] for axis in peers(page.plan, 0)}
    assert OF_EXPERTS in names
    content |= {"domains": domains, "more": more, "summary": "", "which": "1", "plans": {}, "axes": names}
    shown = drawn("topology", **content)
    assert "data-parallel, experts peer" in shown


def test_a_rank_beyond_the_cluster_is_refused(served: Served) -> None:
    assert get(served, f"/topology?session={'0' * 32}&rank=-1")[0].status_code == 422
    assert get(served, f"/topology?session={'0' * 32}")[0].status_code == 404
