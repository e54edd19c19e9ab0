"""A measured step in the prediction's terms."""

import pytest

from tools.scenario import Plan
from tools.trace.alignment import align
from tools.trace.breakdown import Breakdown, StepProfile
from tools.trace.collectives import CollectiveEvent, GroupTime
from tools.trace.rank_profile import RankProfile
from tools.trace.terms import measure_terms

PLAN = Plan(
    tp=2,
    pp=1,
    vpp=1,
    cp=1,
    ep=1,
    etp=1,
    dp=2,
    dp_shard=2,
    zero_stage=1,
    micro_batch_size=1,
    sequence_parallel=False,
    recompute=None,
    schedule="1f1b",
)
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


def _profile(
    rank: int = 0,
    steps: int = 2,
    optimizer_ns: int | None = 120,
    groups: list[GroupTime] | None = None,
    collectives: list[CollectiveEvent] | None = None,
) -> RankProfile:
    return RankProfile(
        file="f",
        rank=rank,
        basis="device",
        breakdown=STEP,
        steps=[StepProfile(number, number * 1000, STEP) for number in range(steps)],
        matrix_kernel_ns=800,
        other_kernel_ns=400,
        optimizer_kernel_ns=optimizer_ns,
        group_times=GROUPS if groups is None else groups,
        collectives=collectives or [],
    )


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


def test_without_marks_the_optimizer_is_memory_bound_work() -> None:
    terms_s = measure_terms([_profile(optimizer_ns=None)], [], PLAN).terms_s
    assert "optimizer" not in terms_s
    assert terms_s["memory_bound_ops"] == pytest.approx(250e-9)


def test_without_steps_the_whole_trace_counts() -> None:
    measured = measure_terms([_profile(steps=0)], [], PLAN)
    assert measured.num_steps == 0
    assert measured.step_time_s == pytest.approx(1000e-9)


def test_collectives_that_are_not_listed_fit_no_axis() -> None:
    terms_s = measure_terms([_profile(groups=[])], [], PLAN).terms_s
    assert terms_s["other_comm_exposed"] == pytest.approx(200e-9)


def test_waiting_for_a_late_rank_is_no_communication() -> None:
    def event(start_ns: int) -> CollectiveEvent:
        return CollectiveEvent("all_reduce", "tp", (0, 1), 2, 8, start_ns, 400, 0, 0, 0)

    groups = [GroupTime("all_reduce", "ranks 0,1", "tp", (0, 1), 400, 200)]
    early, late = (
        _profile(0, 1, groups=groups, collectives=[event(0)]),
        _profile(1, 1, groups=groups, collectives=[event(300)]),
    )
    measured = measure_terms([early, late], align([early, late]), PLAN)
    # rank 0 is in the collective four times as long as its transfer takes; rank 1 waits for nobody
    assert measured.waiting_s == pytest.approx(200e-9 * 0.75 / 2)
    assert measured.terms_s["host_and_other"] == pytest.approx(150e-9 + measured.waiting_s)
    assert measured.step_time_s == pytest.approx(1000e-9)
