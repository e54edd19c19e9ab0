"""A workload's night, from files to its result."""

from dataclasses import replace
from typing import Any

import pytest

from service.schedules.review import run_night, run_workload
from service.schedules.store import find_workload
from tests.unit.service.nightly.builders import Nights, add_profile, policy, workload
from tools.nightly.result import BROKEN


def fail(*_: object) -> None:
    raise ZeroDivisionError("boom")


def test_a_regression_is_an_alarm_once_with_its_cause_and_its_price(nights: Nights) -> None:
    nights.add(range(20), versions={"torch": "2.12"})
    result = nights.run()
    assert (result.status, result.num_nights, result.is_alarm) == ("quiet", 20, False)
    assert result.trend.figures["step_time_s"].nights == list(range(20))  # all that were there
    nights.add(range(20, 21), 2.5, versions={"torch": "2.13"})
    result = nights.run()
    assert (result.status, result.is_alarm) == ("regressed", True)
    assert result.attribution.changes[0].name == "torch"
    assert result.advice[0].startswith("revert the software and rerun (torch 2.12 to 2.13")
    assert result.lost_device_hours_per_day == pytest.approx(2 * 24 * 0.2, rel=0.05)
    nights.add(range(21, 22), 2.5, versions={"torch": "2.13"})
    result = nights.run()
    assert (result.status, result.is_alarm) == ("slower", False)


def test_a_regression_of_nights_that_were_missed_is_still_an_alarm(nights: Nights) -> None:
    nights.add(range(20))
    nights.run()
    nights.add(range(20, 25), 2.5)
    result = nights.run()
    assert (result.status, result.is_alarm, result.findings[0].nights) == ("regressed", True, 5)


def test_a_profile_is_a_night_whose_diagnosis_stands_until_there_is_a_new_one(nights: Nights) -> None:
    add_profile(nights.folder, 1)
    nights.policy = policy(workload(traces="job/*"))
    first, again = nights.run(), nights.run()
    assert (first.status, first.num_nights, first.diagnosis.bottleneck) == ("learning", 1, "compute")
    assert first.night.step_time_s == pytest.approx(0.587, abs=0.001)
    assert (again.status, again.diagnosis) == ("stale", first.diagnosis)


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
def test_a_workload_that_cannot_be_read_says_why(nights: Nights, parts: dict[str, Any], reason: str) -> None:
    nights.add(range(3))
    nights.policy = policy(workload(**parts))
    result = nights.run()
    assert result.status == BROKEN
    assert reason in result.reason
    with nights.database.read() as conn:
        stored = find_workload(conn, "", "job")
    assert stored is not None
    assert stored.reason == result.reason


def test_an_unexpected_error_of_one_workload_does_not_stop_the_others(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    nights.add(range(3))
    add_profile(nights.base / "bad", 1)
    monkeypatch.setattr("service.schedules.review.read_profile_night", fail)
    report = run_night(nights.context, policy(workload("bad", traces="bad/*"), workload()), "night")
    assert [(result.name, result.status) for result in report.workloads] == [
        ("bad", BROKEN),
        ("job", "learning"),
    ]
    assert "ZeroDivisionError" in str(report.workloads[0].reason)
    assert report.outcome == BROKEN


def test_a_workload_that_breaks_keeps_what_was_known(nights: Nights) -> None:
    nights.add(range(20))
    nights.run()
    nights.folder.rename(nights.base / "moved")
    result = nights.run()
    assert (result.status, result.num_nights) == (BROKEN, 20)
    assert result.trend.figures["step_time_s"].values


def test_the_search_is_not_repeated_if_nothing_changed(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    nights.policy = policy(reoptimize=True, gain=9)
    nights.add(range(3))
    first = nights.run().best
    assert nights.reoptimizer.requests == []  # the best plan gains too little for a session
    monkeypatch.setattr("service.schedules.reoptimize.best_plans", fail)
    nights.add(range(3, 4))
    assert nights.run().best == first


def test_two_tenants_have_histories_of_their_own(nights: Nights) -> None:
    nights.add(range(3))
    run_workload(replace(nights.context, tenant="a"), nights.policy.workloads[0], nights.policy)
    assert (len(nights.stored("a")), nights.stored("b")) == (3, [])
