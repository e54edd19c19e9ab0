"""Causes, not shares: what costs how much of the step, due to whom, and what would remove it."""

import pytest

from benchmarks.faults import BAR, CASES, TRACES, Case, device, find, host, judge, judged
from tests.unit.trace.builders import MS, collective, rank_profile
from tools.trace.alignment import align
from tools.trace.breakdown import Breakdown
from tools.trace.causes import LEVERS, PHRASES, Cause, CauseFinding, find_causes
from tools.trace.collectives import GroupTime
from tools.trace.compute import split_compute
from tools.trace.host import HostProfile
from tools.trace.rank_profile import KernelTotal, RankProfile
from tools.trace.roofline import RoofPoint

recorded = pytest.mark.skipif(not TRACES.is_dir(), reason="needs the recorded traces of ../shared")


def rank(
    number: int,
    waits_ms: int,
    before_ms: tuple[int, int, int],
    *,
    compute_ms: int = 50,
    idle_host_ms: int = 0,
    kernel_ns: int = 1000,
    loading_ms: int = 0,
) -> RankProfile:
    """One step of 100 ms with one all-reduce that ends for all at 100 ms."""
    exposed_ns = waits_ms * MS
    breakdown = Breakdown(
        compute_ns=compute_ms * MS,
        communication_ns=exposed_ns,
        exposed_communication_ns=exposed_ns,
        idle_ns=idle_host_ms * MS,
        idle_host_ns=idle_host_ms * MS,
        total_ns=100 * MS,
    )
    event = collective(100 * MS - exposed_ns, 100 * MS, (0, 1), before=tuple(ms * MS for ms in before_ms))  # type: ignore[arg-type]
    kernels = [KernelTotal(f"gemm{index}", "compute", 10, 10 * kernel_ns) for index in range(4)]
    group = GroupTime("all_reduce", event.group_key, None, (0, 1), exposed_ns, exposed_ns)
    return rank_profile(
        number,
        breakdown,
        collectives=[event],
        group_times=[group],
        top_kernels=kernels,
        matrix_kernel_ns=compute_ms * MS,
        host=HostProfile(data_loading_idle_ns=loading_ms * MS),
    )


def causes(*profiles: RankProfile) -> list[CauseFinding]:
    return find_causes(profiles, align([*profiles]))


@pytest.mark.parametrize(
    ("late", "cause"),
    [
        (rank(1, 10, (50, 40, 0), idle_host_ms=40), "late_host"),
        (rank(1, 10, (50, 40, 40), idle_host_ms=40, loading_ms=40), "data_loading"),
        (rank(1, 10, (90, 0, 0), compute_ms=90, kernel_ns=1800), "slow_device"),
        (rank(1, 10, (90, 0, 0), compute_ms=90), "imbalance"),
    ],
    ids=["host", "loader", "device", "work"],
)
def test_waiting_is_due_to_what_the_late_rank_did(late: RankProfile, cause: Cause) -> None:
    first = causes(rank(0, 50, (50, 0, 0)), late)[0]
    assert (first.cause, first.ranks) == (cause, [1])
    # Rank 0 waits 40 ms for it; rank 1 itself idles or computes longer by 40 ms (imbalance counts the wait).
    expected_s = 0.020 if cause == "imbalance" else 0.040
    assert first.seconds == pytest.approx(expected_s, rel=0.01)
    assert first.lever == LEVERS[cause]
    assert all(item.ref and item.says for item in first.evidence)


def test_a_healthy_run_is_limited_by_what_its_plan_costs() -> None:
    healthy = [rank(number, 50, (50, 0, 0)) for number in range(2)]
    found = causes(*healthy)
    assert {finding.cause for finding in found} == {"compute", "exposed_dp"}
    assert sum(finding.seconds for finding in found) == pytest.approx(0.1)


def test_the_parts_of_a_step_are_counted_once() -> None:
    found = causes(rank(0, 50, (50, 0, 0)), rank(1, 10, (50, 40, 0), idle_host_ms=40))
    assert sum(finding.seconds for finding in found) == pytest.approx(0.1, rel=1e-6)


def test_every_cause_has_a_lever_and_a_phrase() -> None:
    assert LEVERS.keys() == PHRASES.keys()


def test_compute_is_split_into_the_roof_what_is_lost_to_it_attention_and_the_rest() -> None:
    product = RoofPoint("aten::mm", "1×1×1", "bf16", 2, 30 * MS, 1e9, 1e6, roof_flops_per_s=1e11)
    attention = RoofPoint("aten::_flash_attention_forward", "b1", "bf16", 1, 10 * MS, 1e9, 1e6)
    profile = rank_profile(0, Breakdown(compute_ns=60 * MS, total_ns=60 * MS), roofline=[product, attention])
    split = split_compute([profile])
    assert split is not None
    assert split.ideal_s == pytest.approx(0.020)
    assert split.inefficiency_s == pytest.approx(0.010)
    assert split.attention_s == pytest.approx(0.010)
    assert split.other_s == pytest.approx(0.020)


@recorded
def test_the_rules_find_simulated_faults_in_recorded_traces() -> None:
    faults = {case.name: fault for case, fault in judged(TRACES)}
    wrong = {name: fault for name, fault in faults.items() if fault}
    assert len(CASES) >= 30
    assert len(wrong) <= (1 - BAR) * len(CASES), wrong


@recorded
@pytest.mark.parametrize("number", range(8))
def test_whichever_rank_is_at_fault_is_named(number: int) -> None:
    for case in (
        Case("late", "late_host", (number,), fault=host(5, number)),
        Case("slow", "slow_device", (number,), fault=device(1.5, number)),
    ):
        assert judge(case, find(case, TRACES)) == ""


@recorded
def test_the_recorded_late_hosts_come_before_the_communication_they_cause() -> None:
    case = next(case for case in CASES if case.name == "recorded late hosts")
    first = find(case, TRACES)
    assert (first.cause, first.ranks) == ("late_host", [0, 6])
    assert first.share > 0.5
