"""A session and its proposal from night to night: what a person decided, what has not ended yet."""

from pathlib import Path

import pytest

from graph.report import WaitingProposal
from graph.request import Decision, DecisionAction
from service.render import nightly as words
from service.schedules.reoptimize import SessionAnswer, prediction_warnings, proposal_of
from tests.unit.service.nightly.builders import (
    Nights,
    ScriptedReoptimizer,
    add_trace,
    faster_plan,
    policy,
    proposal,
    report,
    workload,
)
from tools.nightly.result import BestPlan, NightResult, PlanSpeedup, SessionRecord
from tools.recommend.report import Proposal

ID = "5" * 32
BEST = PlanSpeedup(plan=faster_plan(), speedup=1.3)
SESSION = SessionRecord(
    best=BEST, at=0.0, reason="it is time", session_id=ID, failure="no room", is_open=False
)


@pytest.fixture(autouse=True)
def _known_best_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    best = BestPlan(asked="x", plan=faster_plan(), speedup=1.3)
    monkeypatch.setattr("service.schedules.reoptimize.find_best", lambda *_: best)


def decided(action: DecisionAction, rank: int = 1, *proposals: Proposal) -> SessionAnswer:
    decision = Decision(id=None, action=action, proposal=rank, plan=None, by=None, comment=None)
    return SessionAnswer(report=report(*proposals, decisions=[decision]), session_id=ID)


WAITING = SessionAnswer(waiting_for=[WaitingProposal(rank=1, plan=faster_plan())], session_id=ID)
BUSY = SessionAnswer(session_id=ID, is_busy=True)
FAILED = SessionAnswer(failure="no room", session_id=ID)
FASTER = SessionAnswer(report=report(), session_id=ID)
TOO_LITTLE = SessionAnswer(report=report(proposal(1.03)), session_id=ID)


@pytest.mark.parametrize(
    ("answer", "later", "waits", "is_open", "num_sessions"),
    [
        pytest.param(FASTER, FASTER, False, False, 1, id="a proposal stays open, nothing is searched again"),
        pytest.param(WAITING, WAITING, True, True, 1, id="a session waits for a person"),
        pytest.param(WAITING, decided("reject"), None, False, 1, id="rejected: neither open nor asked again"),
        pytest.param(WAITING, decided("approve"), False, False, 1, id="approved: waits no longer"),
        pytest.param(BUSY, FASTER, False, False, 1, id="longer than the night: taken up by the next"),
        pytest.param(BUSY, BUSY, None, True, 1, id="still not ended: not begun again"),
        pytest.param(TOO_LITTLE, TOO_LITTLE, None, False, 1, id="too little: neither kept nor asked again"),
        pytest.param(FAILED, FAILED, None, False, 2, id="failed: asked again"),
    ],
)
def test_the_night_after_a_session_shows_what_became_of_it(
    nights: Nights,
    answer: SessionAnswer,
    later: SessionAnswer,
    waits: bool | None,
    is_open: bool,
    num_sessions: int,
) -> None:
    """`waits` is None if no proposal is open."""
    nights.policy, nights.reoptimizer = (
        policy(reoptimize=True, approval="person"),
        ScriptedReoptimizer(answer),
    )
    nights.add(range(10))
    first = nights.run()
    assert (first.status, first.reoptimized.failure) == ("quiet", answer.failure)
    assert first.reoptimized.reason == "the best plan is predicted to be 1.30x as fast"
    nights.reoptimizer.later = later
    nights.add(range(10, 11))
    result = nights.run()
    assert len(nights.reoptimizer.requests) == num_sessions
    assert (result.reoptimized is None, result.asked.is_open) == (num_sessions == 1, is_open)
    if waits is None:
        assert (result.proposal, result.gained_device_hours_per_day) == (None, 0.0)
    else:
        kept = result.proposal
        assert (kept.waits, kept.speedup, kept.session_id) == (waits, 1.3, ID)
        assert result.gained_device_hours_per_day == pytest.approx(2 * 24 * (1 - 1 / 1.3))


@pytest.mark.parametrize(("answer", "num_sessions"), [(FASTER, 2), (WAITING, 1)])
def test_a_new_regression_is_given_to_a_session_with_its_profile_unless_one_waits(
    nights: Nights, answer: SessionAnswer, num_sessions: int
) -> None:
    nights.policy = policy(workload(traces="job/*"), reoptimize=True, approval="person")
    nights.reoptimizer = ScriptedReoptimizer(answer)
    for number in range(8):
        add_trace(nights.folder, number, 1000.0)
    nights.run()
    for number in (8, 9):
        add_trace(nights.folder, number, 1300.0)
    assert nights.run().status == "regressed"
    profiles = [Path(request["traces"]).name for request in nights.reoptimizer.requests]
    assert profiles == ["007", "009"][:num_sessions]


def test_a_proposal_whose_plan_runs_by_now_is_no_longer_open(nights: Nights) -> None:
    nights.policy = policy(reoptimize=True)
    nights.add(range(10))
    assert nights.run().proposal
    nights.add(range(10, 11), plan=faster_plan().model_dump(mode="json"))
    assert nights.run().proposal is None


@pytest.mark.parametrize(
    ("answer", "speedups"),
    [
        pytest.param(decided("approve", 2, proposal(1.3), proposal(1.2)), (1.2, 1.1), id="the approved one"),
        pytest.param(
            SessionAnswer(report=report(proposal(1.3, 1.11))), (1.11, None), id="measured, not predicted"
        ),
        pytest.param(SessionAnswer(report=report(proposal(1.3, 0.9))), None, id="measured as slower: none"),
    ],
)
def test_the_proposal_that_is_kept(
    answer: SessionAnswer, speedups: tuple[float, float | None] | None
) -> None:
    kept = proposal_of(answer, SESSION, 1.05)
    assert (kept and (kept.speedup, kept.speedup_low)) == (speedups and pytest.approx(speedups))


def test_a_session_recorded_by_a_release_without_trials_can_be_read() -> None:
    result = NightResult(name="job", status="quiet", hours_per_day=24.0, asked=SESSION, reoptimized=SESSION)
    record = result.model_dump(mode="json")
    del record["asked"]["trials"], record["reoptimized"]["trials"]
    assert words.session(NightResult.model_validate(record)) == [f"session {ID} failed: no room"]


def test_a_prediction_far_from_the_measurement_earns_a_warning() -> None:
    near, far = (BestPlan(asked="x", plan=None, speedup=None, today_s=time_s) for time_s in (2.2, 4.0))
    assert prediction_warnings(near, 2.0) == prediction_warnings(None, 2.0) == []
    (warning,) = prediction_warnings(far, 2.0)
    assert "takes 2.00 s, and is predicted to take 4.00 s" in warning
