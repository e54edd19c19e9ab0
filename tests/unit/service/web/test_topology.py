"""Where a plan's ranks lie, who talks to whom, and that any number of devices fits on a page."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.sessions.pages.topology import MAX_BOXES, Topology, peers
from tests.unit.service.served import SCENARIO, Served
from tests.unit.service.web.browsing import get
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


def test_a_rank_beyond_the_cluster_is_refused(served: Served) -> None:
    assert get(served, f"/topology?session={'0' * 32}&rank=-1")[0].status_code == 422
    assert get(served, f"/topology?session={'0' * 32}")[0].status_code == 404
