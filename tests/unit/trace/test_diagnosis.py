"""What costs how much of the step, due to whom, what would remove it, and how far to trust that."""

from typing import get_args

import pytest

from benchmarks.faults import BAR, CASES, TRACES, find, judged
from tests.unit.trace.builders import MS, collective, rank_profile
from tools.trace.alignment import align
from tools.trace.breakdown import Breakdown
from tools.trace.causes import CAUSES, Cause, CauseFinding, find_causes
from tools.trace.collectives import GroupTime
from tools.trace.diagnosis import ProfileDiagnosis
from tools.trace.folder import FolderProfile, UnreadableFile
from tools.trace.host import HostProfile
from tools.trace.rank_profile import KernelTotal, RankProfile
from tools.trace.report import build_report
from tools.trace.roofline import RoofPoint

recorded = pytest.mark.skipif(not TRACES.is_dir(), reason="needs the recorded traces of ../shared")


def _terms(**times: int) -> Breakdown:
    return Breakdown(total_ns=sum(times.values()), **{f"{name}_ns": time for name, time in times.items()})


def _profile(rank: int = 0, steps: int = 3, terms: Breakdown | None = None, **more: object) -> RankProfile:
    settings = {"matrix_kernel_ns": 100, "world_size": 1, **more}
    return rank_profile(rank, terms or _terms(compute=100 * MS), steps=steps, **settings)


def _diagnose(*profiles: RankProfile, unreadable: int = 0) -> ProfileDiagnosis:
    files = [UnreadableFile(file="file", reason="reason")] * unreadable
    diagnosis = build_report(FolderProfile("folder", list(profiles), files)).diagnosis
    assert diagnosis is not None
    return diagnosis


@pytest.mark.parametrize(
    ("terms", "kernels", "cause"),
    [
        (_terms(compute=80, idle=20), (100, 0), "compute"),
        (_terms(compute=80, idle=20), (10, 90), "memory"),
        (_terms(compute=20, memory=70, idle=10), (100, 0), "memory"),
        (_terms(compute=20, idle=80), (100, 0), "host"),
        (_terms(compute=30, exposed_communication=70), (100, 0), "communication"),
    ],
)
def test_the_largest_term_is_the_cause(terms: Breakdown, kernels: tuple[int, int], cause: str) -> None:
    matrix, other = kernels
    diagnosis = _diagnose(_profile(terms=terms, matrix_kernel_ns=matrix, other_kernel_ns=other))
    assert diagnosis.bottleneck == cause
    assert sum(diagnosis.shares.values()) == pytest.approx(1, abs=0.001)


def test_send_and_receive_between_stages_is_the_pipelines() -> None:
    terms = Breakdown(compute_ns=40, communication_ns=60, exposed_communication_ns=60, total_ns=100)
    events = [collective(0, 60, kind="send_recv")]
    stages = [
        _profile(rank, terms=terms, collectives=events, exposed_by_kind_ns={"send_recv": 60}, world_size=2)
        for rank in range(2)
    ]
    assert _diagnose(*stages).bottleneck == "pipeline"


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


def test_a_core_that_others_use_is_a_slow_device_and_not_uneven_work() -> None:
    """Without a device the ops of the host are what is slow; few of them multiply."""
    ranks = [rank(0, 90, (10, 0, 0)), rank(1, 10, (90, 0, 0), compute_ms=90)]
    for each, slower in zip(ranks, (1.0, 1.5), strict=True):
        each.basis = "host"
        each.top_kernels = [KernelTotal(f"aten::op{n}", "compute", 10, int(slower * 10000)) for n in range(4)]
    assert (causes(*ranks)[0].cause, causes(*ranks)[0].ranks) == ("slow_device", [1])


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
    assert first.lever == CAUSES[cause][1]
    assert all(item.ref and item.summary for item in first.evidence)
    assert first.evidence[0].summary == first.summary


def test_a_healthy_run_is_limited_by_what_its_plan_costs() -> None:
    healthy = [rank(number, 50, (50, 0, 0)) for number in range(2)]
    assert {finding.cause for finding in causes(*healthy)} == {"compute", "exposed_dp"}
    assert CAUSES.keys() == set(get_args(Cause))
    late = [rank(0, 50, (50, 0, 0)), rank(1, 10, (50, 40, 0), idle_host_ms=40)]
    for profiles in (healthy, late):  # each part of the step is counted once
        assert sum(finding.seconds for finding in causes(*profiles)) == pytest.approx(0.1, rel=1e-6)


def test_compute_is_split_into_the_roof_what_is_lost_to_it_attention_and_the_rest() -> None:
    product = RoofPoint("aten::mm", "1×1×1", "bf16", 2, 30 * MS, 1e9, 1e6, roof_flops_per_s=1e11)
    attention = RoofPoint("aten::_flash_attention_forward", "b1", "bf16", 1, 10 * MS, 1e9, 1e6)
    profile = rank_profile(0, Breakdown(compute_ns=60 * MS, total_ns=60 * MS), roofline=[product, attention])
    split = _diagnose(profile).compute_split
    assert split is not None
    parts_s = (split.ideal_s, split.inefficiency_s, split.attention_s, split.other_s)
    assert parts_s == pytest.approx((0.020, 0.010, 0.010, 0.020))


@recorded
def test_the_rules_find_simulated_faults_in_recorded_traces() -> None:
    faults = {case.name: fault for case, fault in judged(TRACES)}
    wrong = {name: fault for name, fault in faults.items() if fault}
    assert len(CASES) >= 30
    assert len(wrong) <= (1 - BAR) * len(CASES), wrong


@recorded
def test_the_recorded_late_hosts_come_before_the_communication_they_cause() -> None:
    case = next(case for case in CASES if case.name == "recorded late hosts")
    first = find(case, TRACES)
    assert (first.cause, first.ranks) == ("late_host", [0, 6])
    assert first.share > 0.5
