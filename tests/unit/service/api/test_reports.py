"""What a session found: in the form that is asked for, with its proposals as files of a framework."""

from typing import Any

import pytest

from service.http.problems import ApiError
from service.http.strict import preferred
from tests.unit.service.served import Served
from tools.frameworks import EXPORT_FORMATS


@pytest.fixture
def done(served: Served, report: dict[str, Any]) -> str:
    """The path of a completed session."""
    id = served.submit()
    served.end(id, "completed", report=report)
    return f"/v1/sessions/{id}"


def test_the_report_is_json_or_markdown_if_asked_for(
    served: Served, done: str, report: dict[str, Any]
) -> None:
    for headers in ({}, {"Accept": "*/*"}, {"Accept": "application/json"}):
        answer = served.client.get(f"{done}/report", headers=headers)
        assert answer.headers["content-type"] == "application/json"
        assert answer.json()["proposals"][0]["plan"] == report["proposals"][0]["plan"]
    answer = served.client.get(f"{done}/report", headers={"Accept": "text/markdown"})
    assert answer.headers["content-type"].startswith("text/markdown")
    assert answer.text.startswith("# ")


def test_a_browser_gets_a_page_that_may_run_no_script(served: Served, done: str) -> None:
    accept = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
    answer = served.client.get(f"{done}/report", headers={"Accept": accept})
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.text.startswith("<!doctype html>")
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src" not in policy


@pytest.mark.parametrize("state", ["queued", "failed"])
def test_a_session_without_a_report_says_why(served: Served, state: str) -> None:
    id, message = served.submit(), "no legal plan fits: 90 GiB of 72 usable"
    if state == "failed":
        served.end(id, "failed", error={"kind": "infeasible", "message": message, "field": None})
    for part in ("report", "proposals", "proposals/1/export?format=megatron"):
        answer = served.client.get(f"/v1/sessions/{id}/{part}")
        assert (answer.status_code, answer.json()["field"]) == (409, "state")
        assert (message in answer.json()["detail"]) == (state == "failed")


@pytest.mark.parametrize("format", EXPORT_FORMATS)
def test_a_proposal_is_exported_or_refused_with_the_field(served: Served, done: str, format: str) -> None:
    answer = served.client.get(f"{done}/proposals/1/export", params={"format": format})
    if answer.status_code == 200:
        assert answer.json()["format"] == format
        assert answer.json()["text"]
    else:
        assert answer.status_code == 422
        assert answer.json()["field"].startswith(("plan.", "training.", "model.", "cluster."))


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        ("", "a/x"),
        ("*/*", "a/x"),
        ("b/y", "b/y"),
        ("b/*", "b/y"),
        ("a/x;q=0.2, b/y;q=0.8", "b/y"),
        ("a/x;q=0, */*", "b/y"),
        ("B/Y", "b/y"),
        ("c/z, */*;q=0.1", "a/x"),
        ("b/y;q=nan, a/x;q=0.1", "a/x"),
    ],
)
def test_the_form_that_is_liked_best_is_chosen(accept: str, chosen: str) -> None:
    assert preferred(accept, ("a/x", "b/y")) == chosen


@pytest.mark.parametrize("accept", ["c/z", "a/x;q=0", "a/x;q=much", ";;,"])
def test_what_we_do_not_have_is_not_acceptable(accept: str) -> None:
    with pytest.raises(ApiError):
        preferred(accept, ("a/x",))


def test_a_question_about_a_session_is_answered_by_rules_where_there_is_no_model(
    served: Served, done: str
) -> None:
    answer = served.client.post(f"{done}/ask", json={"question": "why not ep 7?"}).json()
    assert (answer["by"], answer["tools"]) == ("expert-rules", ["explain_plan"])
    assert "must be 1 for a dense model" in answer["answer"]
