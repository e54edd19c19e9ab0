"""A session and its proposal from night to night: what a person decided, what has not ended yet."""

from pathlib import Path
from typing import Any

import pytest

from graph.report import Decision, DecisionAction
from service.db.engine import Database
from service.nightly.reoptimize import Answer, prediction_warnings, proposal_of
from service.render import nightly as words
from tests.unit.service.nightly.builders import (
    ScriptedReoptimizer,
    add_night,
    add_nights,
    fast,
    faster_plan,
    proposal,
    report,
    waiting,
)
from tests.unit.service.nightly.test_review import night, policy
from tools.nightly.result import BestPlan, NightResult, PlanSpeedup, SessionRecord
from tools.recommend.report import Proposal

ID = "5" * 32
ASKED = SessionRecord(
    best=PlanSpeedup(plan=faster_plan(), speedup=1.3),
    at=0.0,
    reason="it is time",
    session_id=ID,
    failure=None,
    is_open=False,
)


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.nightly.reoptimize.find_best", fast)


def two_nights(
    database: Database, folder: Path, first: Answer, later: Answer
) -> tuple[Any, ScriptedReoptimizer]:
    """What is said on the second one."""
    again, given = ScriptedReoptimizer(first), policy(reoptimize=True, approval="person")
    again.later = later
    add_nights(folder / "job", range(10))
    night(database, folder, given, again)
    add_night(folder / "job", 10)
    return night(database, folder, given, again), again


def decided(action: DecisionAction, rank: int = 1, *proposals: Proposal) -> Answer:
    decision = Decision(id=None, action=action, proposal=rank, plan=None, by=None, comment=None)
    return Answer(report=report(*proposals, decisions=[decision]), session_id=ID)


def test_a_proposal_that_a_person_rejected_is_no_longer_open_nor_asked_again(
    database: Database, tmp_path: Path
) -> None:
    said, again = two_nights(database, tmp_path, waiting(ID), decided("reject"))
    assert (said.proposal, said.gained_device_hours_per_day, said.reoptimized) == (None, 0.0, None)
    assert len(again.requests) == 1


def test_a_proposal_that_a_person_approved_waits_no_longer(database: Database, tmp_path: Path) -> None:
    said, _ = two_nights(database, tmp_path, waiting(ID), decided("approve"))
    assert (said.proposal.waits, said.proposal.speedup) == (False, 1.3)


def test_while_a_session_waits_no_other_is_begun_even_if_the_step_got_slower(
    database: Database, tmp_path: Path
) -> None:
    again, given = ScriptedReoptimizer(waiting(ID)), policy(reoptimize=True, approval="person")
    add_nights(tmp_path / "job", range(20))
    night(database, tmp_path, given, again)
    add_nights(tmp_path / "job", range(20, 22), 2.5)
    said = night(database, tmp_path, given, again)
    assert (said.status, len(again.requests)) == ("regressed", 1)
    assert said.proposal.waits


def test_a_session_that_takes_longer_than_the_night_is_taken_up_by_the_next(
    database: Database, tmp_path: Path
) -> None:
    busy = Answer(session_id=ID, is_busy=True)
    said, again = two_nights(database, tmp_path, busy, Answer(report=report(), session_id=ID))
    assert (said.proposal.speedup, len(again.requests)) == (1.3, 1)


def test_a_session_that_has_still_not_ended_is_not_begun_again(database: Database, tmp_path: Path) -> None:
    busy = Answer(session_id=ID, is_busy=True)
    said, again = two_nights(database, tmp_path, busy, busy)
    assert (said.proposal, said.asked.is_open, len(again.requests)) == (None, True, 1)


def test_a_session_that_found_too_little_is_not_asked_the_same_again(
    database: Database, tmp_path: Path
) -> None:
    little = Answer(report=report(proposal(1.03)), session_id=ID)
    said, again = two_nights(database, tmp_path, little, little)
    assert (said.proposal, len(again.requests)) == (None, 1)


def test_a_session_that_failed_is_asked_again(database: Database, tmp_path: Path) -> None:
    failed = Answer(failure="no room", session_id=ID)
    _, again = two_nights(database, tmp_path, failed, failed)
    assert len(again.requests) == 2


def test_the_proposal_that_was_approved_is_kept_not_the_first() -> None:
    kept = proposal_of(decided("approve", 2, proposal(1.3), proposal(1.2)), ASKED, 1.05)
    assert kept is not None
    assert kept.speedup == 1.2


def test_a_proposal_whose_plan_runs_by_now_is_no_longer_open(database: Database, tmp_path: Path) -> None:
    again, given = ScriptedReoptimizer(), policy(reoptimize=True)
    add_nights(tmp_path / "job", range(10))
    assert night(database, tmp_path, given, again).proposal
    add_night(tmp_path / "job", 10, plan=faster_plan().model_dump(mode="json"))
    assert night(database, tmp_path, given, again).proposal is None


def test_what_a_trial_measured_stands_in_place_of_the_prediction() -> None:
    kept = proposal_of(Answer(report=report(proposal(1.3, measured_speedup=1.11))), ASKED, 1.05)
    assert kept is not None
    assert (kept.speedup, kept.speedup_low) == (1.11, None)


def test_a_plan_that_a_trial_measured_as_slower_is_not_proposed() -> None:
    slower = report(proposal(1.3, measured_speedup=0.9))
    assert proposal_of(Answer(report=slower), ASKED, 1.05) is None


def test_why_trials_ended_is_told(database: Database, tmp_path: Path) -> None:
    ended = report(stopping="nothing could be measured: out of memory")
    said, _ = two_nights(database, tmp_path, *[Answer(report=ended, session_id=ID)] * 2)
    assert words.session(said) == ["trials: nothing could be measured: out of memory"]


def test_what_a_release_without_trials_kept_is_told_too(database: Database, tmp_path: Path) -> None:
    failed = Answer(failure="no room", session_id=ID)
    said, _ = two_nights(database, tmp_path, failed, failed)
    record = said.model_dump(mode="json")
    del record["asked"]["trials"]
    assert words.session(NightResult.model_validate(record)) == [f"session {ID} failed: no room"]


def test_a_prediction_far_from_what_was_measured_is_doubted() -> None:
    near, far = (BestPlan(asked="x", plan=None, speedup=None, today_s=time_s) for time_s in (2.2, 4.0))
    assert prediction_warnings(near, 2.0) == []
    assert prediction_warnings(None, 2.0) == []
    (says,) = prediction_warnings(far, 2.0)
    assert "takes 2.00 s, and is predicted to take 4.00 s" in says
