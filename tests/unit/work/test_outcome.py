"""What is kept of a session's end."""

from graph.session import Outcome
from service.worker.run_session import end_of, failure_of
from tools.errors import DataError, InfeasibleError, InputError


def test_a_report_gives_the_figures_that_lists_show() -> None:
    report = {
        "diagnosis": {"bottleneck": "host"},
        "verdict": "fine",
        "proposals": [{"speedup": 2.0, "measured": {"speedup": 1.8}}, {"speedup": 1.5}],
    }
    assert end_of(Outcome(report)) == (
        "completed",
        {"report": report, "bottleneck": "host", "verdict": "fine", "speedup": 2.0, "measured_speedup": 1.8},
    )


def test_a_report_without_proposals_is_an_end_too() -> None:
    state, columns = end_of(Outcome({"diagnosis": None, "proposals": []}))
    assert state == "completed"
    assert (columns["speedup"], columns["measured_speedup"], columns["bottleneck"]) == (None, None, None)


def test_a_question_to_a_person_makes_the_session_wait_with_what_is_known() -> None:
    asked = {
        "question": "which?",
        "bottleneck": "host",
        "proposals": [{"rank": 1, "speedup": 2.0, "measured": None}],
    }
    assert end_of(Outcome(None, asked)) == (
        "waiting_approval",
        {"waiting_for": asked, "bottleneck": "host", "speedup": 2.0, "measured_speedup": None},
    )


def test_a_question_of_an_older_release_makes_the_session_wait_too() -> None:
    state, columns = end_of(Outcome(None, {"question": "which?", "proposals": [{"rank": 1}]}))
    assert state == "waiting_approval"
    assert (columns["bottleneck"], columns["speedup"]) == (None, None)


def test_an_end_without_a_report_is_a_failure() -> None:
    state, columns = end_of(Outcome(None))
    assert state == "failed"
    assert "retry" in columns["error"]["message"]


def test_errors_are_told_by_kind_and_strangers_only_by_name() -> None:
    told = [
        failure_of(error, "s1")[1]["error"]
        for error in (
            InputError("tp", 3, "must divide"),
            InfeasibleError("nothing fits"),
            DataError("no table"),
            KeyError("sk-secret"),
        )
    ]
    assert [one["kind"] for one in told] == ["input", "infeasible", "failed", "unexpected"]
    assert told[0]["field"] == "tp"
    assert "s1" in told[3]["message"]
    assert "sk-secret" not in told[3]["message"]
