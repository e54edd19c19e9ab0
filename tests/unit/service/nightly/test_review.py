"""A workload's night, from files to what is said of it."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from service.db.engine import Database
from service.db.models import traces
from service.db.schedules import find_workload, list_nights
from service.db.traces import COMPLETE, create_trace
from service.nightly.config import Policy, Workload, parse
from service.nightly.ingest import find_uploads
from service.nightly.reoptimize import Answer
from service.nightly.review import run_night, run_workload
from service.settings import Settings
from service.traces import Uploads
from tests.unit.service.nightly.builders import (
    BASE,
    ScriptedReoptimizer,
    add_night,
    add_nights,
    add_profile,
    add_trace,
    context,
    fast,
    proposal,
    report,
    waiting,
    workload,
)
from tools.nightly.result import BROKEN


def policy(*workloads: dict[str, Any], **options: Any) -> Policy:  # noqa: ANN401 - fields of a policy
    return parse(Policy, {"workloads": list(workloads) or [workload()], "reoptimize": False, **options})


def night(
    database: Database, base: Path, given: Policy | None = None, again: ScriptedReoptimizer | None = None
) -> Any:  # noqa: ANN401 - a NightResult whose optional parts a test knows
    given = given or policy()
    return run_workload(context(database, base, again), given.workloads[0], given)


def test_the_first_run_takes_in_all_nights_that_are_there(database: Database, tmp_path: Path) -> None:
    add_nights(tmp_path / "job", range(20))
    said = night(database, tmp_path)
    assert (said.status, said.num_nights, said.is_alarm) == ("quiet", 20, False)
    assert said.trend.figures["step_time_s"].nights == list(range(20))


def test_a_regression_is_told_once_with_its_cause_and_its_price(database: Database, tmp_path: Path) -> None:
    add_nights(tmp_path / "job", range(20), versions={"torch": "2.12"})
    assert night(database, tmp_path).status == "quiet"
    add_night(tmp_path / "job", 20, 2.5, versions={"torch": "2.13"})
    said = night(database, tmp_path)
    assert (said.status, said.is_alarm) == ("regressed", True)
    assert said.attribution.changes[0].name == "torch"
    assert said.advice[0].startswith("run once with the previous software: torch 2.12 to 2.13")
    assert said.lost_device_hours_per_day == pytest.approx(2 * 24 * 0.2, rel=0.05)
    add_night(tmp_path / "job", 21, 2.5, versions={"torch": "2.13"})
    said = night(database, tmp_path)
    assert (said.status, said.is_alarm) == ("slower", False)


def test_a_regression_of_nights_that_were_missed_is_still_an_alarm(
    database: Database, tmp_path: Path
) -> None:
    add_nights(tmp_path / "job", range(20))
    night(database, tmp_path)
    add_nights(tmp_path / "job", range(20, 25), 2.5)
    said = night(database, tmp_path)
    assert (said.status, said.is_alarm, said.findings[0].nights) == ("regressed", True, 5)


def test_the_same_profile_again_is_no_new_night(database: Database, tmp_path: Path) -> None:
    add_nights(tmp_path / "job", range(20))
    night(database, tmp_path)
    said = night(database, tmp_path)
    assert (said.status, said.is_alarm) == ("stale", False)
    assert "nothing new since" in said.reason
    with database.read() as conn:
        assert len(list_nights(conn, "", "job")) == 20


def test_profiles_are_nights_with_a_diagnosis(database: Database, tmp_path: Path) -> None:
    add_profile(tmp_path / "job", 1)
    said = night(database, tmp_path, policy(workload(traces="job/*")))
    assert (said.status, said.num_nights) == ("learning", 1)
    assert said.diagnosis.bottleneck == "compute"
    assert said.night.step_time_s == pytest.approx(0.587, abs=0.001)


def test_the_last_diagnosis_stands_until_there_is_a_new_profile(database: Database, tmp_path: Path) -> None:
    add_profile(tmp_path / "job", 1)
    given = policy(workload(traces="job/*"))
    first, again = night(database, tmp_path, given), night(database, tmp_path, given)
    assert again.status == "stale"
    assert again.diagnosis == first.diagnosis


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"metrics": "nowhere/*.json"}, "metrics: got 'nowhere/*.json'; matches nothing"),
        ({"scenario": {"model": {}}}, "scenario."),
        ({"scenario": "absent.json"}, "scenario: got"),
        ({"traces": "job/*"}, "no folder with"),
        ({"uploads": "llama-*"}, "matches the name of none of 0 complete uploads"),
    ],
)
def test_a_workload_that_cannot_be_read_says_why(
    database: Database, tmp_path: Path, parts: dict[str, Any], reason: str
) -> None:
    add_nights(tmp_path / "job", range(3))
    said = night(database, tmp_path, policy(workload(**parts)))
    assert said.status == BROKEN
    assert reason in said.reason
    with database.read() as conn:
        kept = find_workload(conn, "", "job")
    assert kept is not None
    assert kept.reason == said.reason


def test_a_broken_night_in_between_is_noted_and_the_newest_counts(database: Database, tmp_path: Path) -> None:
    add_nights(tmp_path / "job", range(3))
    (tmp_path / "job" / "001.json").write_text("{broken")
    os.utime(tmp_path / "job" / "001.json", (1_790_086_400, 1_790_086_400))
    said = night(database, tmp_path)
    assert (said.status, said.num_nights) == ("learning", 2)
    assert "an earlier night was left out" in said.notes[0]


def test_an_unexpected_error_of_one_workload_does_not_stop_the_others(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_nights(tmp_path / "good", range(3))
    add_profile(tmp_path / "bad", 1)

    def explode(*_: object) -> None:
        raise ZeroDivisionError("boom")

    monkeypatch.setattr("service.nightly.review.read_profile_night", explode)
    given = policy(workload("bad", traces="bad/*"), workload("good"))
    found = run_night(context(database, tmp_path), given, "night")
    assert [(one.name, one.status) for one in found.workloads] == [
        ("bad", BROKEN),
        ("good", "learning"),
    ]
    assert "ZeroDivisionError" in str(found.workloads[0].reason)
    assert found.outcome == BROKEN


def test_a_workload_that_breaks_keeps_what_was_known(database: Database, tmp_path: Path) -> None:
    add_nights(tmp_path / "job", range(20))
    night(database, tmp_path)
    (tmp_path / "job").rename(tmp_path / "moved")
    said = night(database, tmp_path)
    assert (said.status, said.num_nights) == (BROKEN, 20)
    assert said.trend.figures["step_time_s"].values


def test_a_session_is_run_once_for_a_plan_that_gains_enough(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.nightly.reoptimize.find_best", fast)
    add_nights(tmp_path / "job", range(10))
    again, given = ScriptedReoptimizer(), policy(reoptimize=True)
    said = night(database, tmp_path, given, again)
    assert said.reoptimized.reason == "the best plan is 1.30x as fast by prediction"
    assert said.gained_device_hours_per_day == pytest.approx(2 * 24 * (1 - 1 / 1.3))
    add_night(tmp_path / "job", 10)
    said = night(database, tmp_path, given, again)
    assert said.reoptimized is None
    assert said.proposal.session_id == "5" * 32
    assert len(again.requests) == 1


def test_a_new_regression_is_given_to_a_session_with_its_profile(database: Database, tmp_path: Path) -> None:
    for number in range(8):
        add_trace(tmp_path / "job", number, 1000.0)
    again, given = ScriptedReoptimizer(), policy(workload(traces="job/*"), reoptimize=True, gain=9)
    night(database, tmp_path, given, again)
    assert again.requests == []
    for number in (8, 9):
        add_trace(tmp_path / "job", number, 1300.0)
    said = night(database, tmp_path, given, again)
    assert said.status == "regressed"
    assert [Path(one["traces"]).name for one in again.requests] == ["009"]


def test_a_session_is_asked_to_go_as_far_as_the_policy_says(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.nightly.reoptimize.find_best", fast)
    add_nights(tmp_path / "job", range(3))
    options = {
        "mode": "tune", "approval": "policy", "policy": {"fields": ["recompute"]}, "template": "reference",
    }  # fmt: skip
    again = ScriptedReoptimizer()
    night(database, tmp_path, policy(reoptimize=True, **options), again)
    assert [{name: one[name] for name in options} for one in again.requests] == [options]


def test_a_proposal_that_may_gain_nothing_is_not_kept(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.nightly.reoptimize.find_best", fast)
    add_nights(tmp_path / "job", range(10))
    again = ScriptedReoptimizer(Answer(report=report(proposal(1.03))))
    assert night(database, tmp_path, policy(reoptimize=True), again).proposal is None


def test_a_session_that_fails_is_told_and_the_night_stands(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.nightly.reoptimize.find_best", fast)
    add_nights(tmp_path / "job", range(10))
    said = night(database, tmp_path, policy(reoptimize=True), ScriptedReoptimizer(Answer(failure="no room")))
    assert (said.status, said.reoptimized.failure, said.proposal) == ("quiet", "no room", None)


def test_a_session_that_waits_is_shown_as_waiting(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.nightly.reoptimize.find_best", fast)
    add_nights(tmp_path / "job", range(10))
    said = night(
        database, tmp_path, policy(reoptimize=True, approval="person"), ScriptedReoptimizer(waiting())
    )
    assert (said.proposal.waits, said.proposal.speedup) == (True, 1.3)


def test_the_search_is_not_repeated_where_nothing_changed(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_nights(tmp_path / "job", range(3))
    given = policy(reoptimize=True, gain=9)
    first = night(database, tmp_path, given, ScriptedReoptimizer()).best
    assert first.plan.dp == 2

    def refuse(*_: object) -> None:
        raise AssertionError("searched again")

    monkeypatch.setattr("service.nightly.reoptimize.best_plans", refuse)
    add_night(tmp_path / "job", 3)
    assert night(database, tmp_path, given, ScriptedReoptimizer()).best == first


def test_uploads_are_taken_in_the_order_in_which_they_were_completed(
    database: Database, tmp_path: Path
) -> None:
    uploads = Uploads(Settings(data_dir=tmp_path, _env_file=None))
    with database.begin() as conn:
        for number, completed_at in enumerate((20.0, 10.0)):
            made = create_trace(conn, "", "anna", f"job-{number}", 3600.0)
            done = {"state": COMPLETE, "completed_at": completed_at}
            conn.execute(traces.update().where(traces.c.id == made.id).values(done))
        found = find_uploads(conn, "", parse(Workload, workload(uploads="job-*")), uploads)
    assert [one.at for one in found] == [10.0, 20.0]


def test_a_profile_that_is_still_being_written_waits(database: Database, tmp_path: Path) -> None:
    add_nights(tmp_path / "job", range(3))
    fresh = tmp_path / "job" / "new.json"
    fresh.write_text((tmp_path / "job" / "002.json").read_text())
    assert night(database, tmp_path).num_nights == 3


def test_a_scenario_may_be_a_file_beside_the_configuration(database: Database, tmp_path: Path) -> None:
    add_nights(tmp_path / "job", range(3))
    (tmp_path / "base.json").write_text((BASE / "base.json").read_text())
    given = policy(workload(scenario="base.json"))
    assert night(database, tmp_path, given).model == "GPT of 11M parameters"


def test_two_tenants_have_histories_of_their_own(database: Database, tmp_path: Path) -> None:
    add_nights(tmp_path / "job", range(3))
    given = policy()
    one: Workload = given.workloads[0]
    run_workload(replace(context(database, tmp_path), tenant="a"), one, given)
    with database.read() as conn:
        assert len(list_nights(conn, "a", "job")) == 3
        assert list_nights(conn, "b", "job") == []
