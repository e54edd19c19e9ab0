"""What is kept of a session's end."""

from graph.events import SessionFailure
from graph.session import SessionOutcome
from service.sessions.run import end_of, failure_of
from service.strict_json import JsonObject
from tests.unit.graph.cases import run, small
from tools.errors import DataError, InfeasibleError, InputError


def test_a_report_gives_the_figures_that_lists_show() -> None:
    outcome, _ = run(small())
    report = outcome.report
    assert report is not None
    assert report.headline is not None
    assert report.headline.gain is not None
    state, columns = end_of(SessionOutcome(report))
    assert state == "completed"
    assert columns["report"] == report.model_dump(mode="json")
    assert (columns["verdict"], columns["bottleneck"]) == (report.headline.text, report.diagnosis.bottleneck)
    assert columns["headline"] == report.headline.model_dump(mode="json")
    assert (columns["speedup"], columns["measured_speedup"]) == (report.headline.gain.speedup, None)
    gain = report.headline.gain.model_copy(update={"speedup": 1.8, "predicted": 2.0})
    measured = report.headline.model_copy(update={"gain": gain, "is_measured": True})
    _, columns = end_of(SessionOutcome(report.model_copy(update={"headline": measured})))
    assert (columns["speedup"], columns["measured_speedup"]) == (2.0, 1.8)


def test_a_question_of_any_release_makes_the_session_wait() -> None:
    asked = {"question": "which?", "bottleneck": "host", "proposals": [{"rank": 1, "speedup": 2.0}]}
    assert end_of(SessionOutcome(None, asked)) == (
        "waiting_approval",
        {"waiting_for": asked, "bottleneck": "host"},
    )


def failure(columns: JsonObject) -> SessionFailure:
    return SessionFailure.model_validate(columns["error"])


def test_an_end_without_a_report_is_a_failure() -> None:
    state, columns = end_of(SessionOutcome(None))
    assert state == "failed"
    assert "retry" in failure(columns).message


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
    assert [error.kind for error in told] == ["input", "infeasible", "failed", "unexpected"]
    assert told[0].field == "tp"
    assert "s1" in told[3].message
    assert "sk-secret" not in told[3].message
