"""What is kept of a session's end."""

from typing import cast

from graph.session import Outcome
from service.db.models import Failure
from service.strict_json import JsonObject
from service.worker.run_session import end_of, failure_of
from tests.unit.graph.cases import run, small
from tools.errors import DataError, InfeasibleError, InputError
from tools.recommend.report import MeasuredPlan


def test_a_report_gives_the_figures_that_lists_show() -> None:
    outcome, _ = run(small())
    assert outcome.report is not None
    best = outcome.report.proposals[0]
    measured = MeasuredPlan(
        step_time_s=1.0, interval_s=(0.9, 1.1), noise=0.01, speedup=1.8, speedup_low=1.7, speedup_high=1.9,
        peak_memory_gib=None, predicted_step_time_s=1.0, trial="s1-1",
    )  # fmt: skip
    report = outcome.report.model_copy(
        update={"proposals": [best.model_copy(update={"speedup": 2.0, "measured": measured})]}
    )
    state, columns = end_of(Outcome(report))
    assert state == "completed"
    assert columns["report"] == report.model_dump(mode="json")
    assert columns["verdict"] == report.verdict
    assert (columns["speedup"], columns["measured_speedup"]) == (2.0, 1.8)
    assert columns["bottleneck"] == report.diagnosis.bottleneck


def test_a_question_to_a_person_makes_the_session_wait_with_what_is_known() -> None:
    first = {"rank": 1, "speedup": 2.0, "measured": None}
    asked = {"question": "which?", "bottleneck": "host", "proposals": [first]}
    assert end_of(Outcome(None, asked)) == (
        "waiting_approval",
        {"waiting_for": asked, "bottleneck": "host", "speedup": 2.0, "measured_speedup": None},
    )


def test_a_question_of_an_older_release_makes_the_session_wait_too() -> None:
    state, columns = end_of(Outcome(None, {"question": "which?", "proposals": [{"rank": 1}]}))
    assert state == "waiting_approval"
    assert (columns["bottleneck"], columns["speedup"]) == (None, None)


def failure(columns: JsonObject) -> Failure:
    return cast("Failure", columns["error"])


def test_an_end_without_a_report_is_a_failure() -> None:
    state, columns = end_of(Outcome(None))
    assert state == "failed"
    assert "retry" in failure(columns)["message"]


def test_known_errors_are_reported_by_kind_and_others_only_by_name() -> None:
    told = [
        failure(failure_of(error, "s1")[1])
        for error in (
            InputError("tp", 3, "must divide"),
            InfeasibleError("nothing fits"),
            DataError("no table"),
            KeyError("sk-secret"),
        )
    ]
    assert [error["kind"] for error in told] == ["input", "infeasible", "failed", "unexpected"]
    assert told[0]["field"] == "tp"
    assert "s1" in told[3]["message"]
    assert "sk-secret" not in told[3]["message"]
