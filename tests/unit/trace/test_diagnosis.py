"""One cause with its weight, and a confidence that falls when data is thin."""

import pytest

from tests.unit.trace.builders import MS, collective, rank_profile
from tools.trace.breakdown import Breakdown, StepProfile
from tools.trace.diagnosis import ProfileDiagnosis
from tools.trace.folder import FolderProfile, UnreadableFile
from tools.trace.rank_profile import RankProfile
from tools.trace.report import build_report
from tools.trace.roofline import RoofPoint


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


def test_warm_up_does_not_weigh() -> None:
    cold, warm = _terms(compute=10, idle=990), _terms(compute=90, idle=10)
    profile = _profile()
    profile.steps = [StepProfile(0, 0, cold, True), StepProfile(1, 0, warm), StepProfile(2, 0, warm)]
    assert _diagnose(profile).shares["compute"] == 0.9


@pytest.mark.parametrize(("compute", "idle", "competing"), [(52, 48, ["host"]), (90, 10, [])])
def test_only_a_close_second_competes(compute: int, idle: int, competing: list[str]) -> None:
    causes = _diagnose(_profile(terms=_terms(compute=compute, idle=idle))).competing_causes
    assert [cause.bottleneck for cause in causes] == competing


@pytest.mark.parametrize(
    ("profile", "unreadable", "advice"),
    [
        (_profile(world_size=8), 0, "more ranks"),
        (_profile(steps=1), 0, "three or more steps"),
        (_profile(steps=0), 0, "mark steps"),
        (_profile(), 1, "unreadable"),
    ],
)
def test_thin_data_lowers_confidence_and_says_what_to_profile(
    profile: RankProfile, unreadable: int, advice: str
) -> None:
    thin, full = _diagnose(profile, unreadable=unreadable), _diagnose(_profile())
    assert thin.confidence < full.confidence
    assert any(advice in text for text in thin.next_to_profile)


def test_shapes_raise_the_confidence_of_a_compute_verdict() -> None:
    point = RoofPoint("aten::mm", "1×1×1", "fp16", 1, 1000, 2e6, 1e3)
    assert _diagnose(_profile(roofline=[point])).confidence > _diagnose(_profile()).confidence


def test_every_piece_of_evidence_has_a_number_and_a_place() -> None:
    for item in _diagnose(_profile()).evidence:
        assert isinstance(item.value, float)
        assert item.ref
        assert item.says
