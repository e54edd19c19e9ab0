"""A measured step in the cost model's terms, and the parallel axis of each collective."""

from typing import Any

import pytest

from tests.unit.trace.builders import collective, plan, rank_profile
from tools.trace.alignment import align
from tools.trace.breakdown import Breakdown
from tools.trace.collectives import GroupTime
from tools.trace.rank_profile import RankProfile
from tools.trace.terms import find_axis, measure_terms

PLAN = plan(tp=2, dp=2, dp_shard=2)
STEP = Breakdown(
    compute_ns=600,
    communication_ns=400,
    exposed_communication_ns=200,
    memory_ns=50,
    idle_ns=150,
    total_ns=1000,
)
GROUPS = [
    GroupTime("all_reduce", "ranks 0,1", "tp", (0, 1), 300, 150),
    GroupTime("all_reduce", "ranks 0,2", "dp", (0, 2), 100, 50),
]


def _profile(rank: int = 0, steps: int = 2, **more: Any) -> RankProfile:  # noqa: ANN401 - any field
    kernels = {"matrix_kernel_ns": 800, "other_kernel_ns": 400, "optimizer_kernel_ns": 120}
    return rank_profile(rank, STEP, steps=steps, **{"group_times": GROUPS, **kernels, **more})


def test_the_terms_are_those_of_one_step_and_add_up_to_it() -> None:
    measured = measure_terms([_profile(0), _profile(1)], [], PLAN)
    assert measured.num_steps == 2
    assert measured.terms_s == pytest.approx(
        {
            "compute": 400e-9,
            "memory_bound_ops": (140 + 50) * 1e-9,
            "optimizer": 60e-9,
            "tp_comm_exposed": 150e-9,
            "dp_comm_exposed": 50e-9,
            "host_and_other": 150e-9,
        }
    )
    assert measured.step_time_s == pytest.approx(1000e-9)


def test_what_the_trace_does_not_tell_apart_stays_in_the_nearest_term_or_is_the_whole_trace() -> None:
    terms_s = measure_terms([_profile(optimizer_kernel_ns=None)], [], PLAN).terms_s
    assert "optimizer" not in terms_s
    assert terms_s["memory_bound_ops"] == pytest.approx(250e-9)
    terms_s = measure_terms([_profile(group_times=[])], [], PLAN).terms_s
    assert terms_s["other_comm_exposed"] == pytest.approx(200e-9)
    measured = measure_terms([_profile(steps=0)], [], PLAN)
    assert measured.num_steps == 0
    assert measured.step_time_s == pytest.approx(1000e-9)


def test_waiting_for_a_late_rank_is_not_communication() -> None:
    groups = [GroupTime("all_reduce", "ranks 0,1", "tp", (0, 1), 400, 200)]
    early, late = (
        _profile(rank, 1, group_times=groups, collectives=[collective(start_ns, 400, (0, 1))])
        for rank, start_ns in ((0, 0), (1, 300))
    )
    measured = measure_terms([early, late], align([early, late]), PLAN)
    # rank 0 is in the collective four times as long as its transfer takes; rank 1 waits for nobody
    assert measured.waiting_s == pytest.approx(200e-9 * 0.75 / 2)
    assert measured.terms_s["host_and_other"] == pytest.approx(150e-9 + measured.waiting_s)
    assert measured.step_time_s == pytest.approx(1000e-9)


DESCRIPTIONS = {
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "DATA_PARALLEL_GROUP_WITH_CP": "dp",
    "CONTEXT_PARALLEL_GROUP": "cp",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
    "EXPERT_DATA_PARALLEL_GROUP": "dp",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "mesh_tp": "tp",
    "mesh_dp_shard_cp": "dp",
    "mesh_fsdp": "dp",
    "pp": "pp",
}
ALL_AXES = {"tp": 2, "pp": 2, "cp": 2, "dp": 4, "ep": 2}
LAYOUT = {(0, 1): "tp", (4, 5): "tp", (0, 2, 4, 6): "dp", (1, 9): "pp", (0, 3): "other"}
"""Ranks are ordered tensor, data, pipeline."""


@pytest.mark.parametrize(
    ("degrees", "kind", "description", "ranks", "axis"),
    [
        # the only axis needs no hint
        ({"dp": 2}, "all_reduce", "", None, "dp"),
        ({"tp": 8}, "all_reduce", "default_pg", None, "tp"),
        *((ALL_AXES, "all_reduce", description, None, axis) for description, axis in DESCRIPTIONS.items()),
        # send and receive serve the pipeline or the ring, all-to-all the experts
        ({"pp": 2, "dp": 4}, "send_recv", "", None, "pp"),
        ({"cp": 2, "dp": 4}, "send_recv", "", None, "cp"),
        ({"dp": 8, "ep": 8}, "all_to_all", "", None, "ep"),
        *(({"tp": 2, "dp": 4, "pp": 2}, "all_reduce", "", ranks, axis) for ranks, axis in LAYOUT.items()),
        # what fits two axes, or none, is not guessed
        ({"tp": 2, "ep": 2, "dp": 4}, "all_reduce", "", (0, 1), "other"),
        ({"tp": 2, "dp": 4}, "all_reduce", "", None, "other"),
    ],
)
def test_a_collective_belongs_to_the_axis_that_its_group_shows(
    degrees: dict[str, int], kind: str, description: str, ranks: tuple[int, ...] | None, axis: str
) -> None:
    assert find_axis(GroupTime(kind, "key", None, ranks, 1, 1), description, plan(**degrees)) == axis
