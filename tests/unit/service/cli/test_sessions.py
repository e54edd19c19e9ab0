"""`asap sessions` against a real API, without a network; the test does what a worker would."""

from typing import Any

import httpx
import pytest

from tests.unit.service.cli.commands import Asap
from tests.unit.service.cli.conftest import Connect
from tests.unit.service.db.making import append_event, list_decisions
from tests.unit.service.served import SCENARIO, Served


def end_while_waiting(
    served: Served,
    monkeypatch: pytest.MonkeyPatch,
    state: str,
    **columns: Any,  # noqa: ANN401 - of a session
) -> None:
    """When the command sleeps, a worker ends its session."""

    def end(_: float) -> None:
        (session,) = served.client.get("/v1/sessions").json()["items"]
        if session["state"] == "queued":
            served.end(session["id"], state, **columns)

    monkeypatch.setattr("time.sleep", end)


@pytest.mark.parametrize(
    ("state", "kind", "status", "says"),
    [
        ("failed", "infeasible", 3, "because"),
        ("failed", "unexpected", 1, "because"),
        ("cancelled", None, 1, "cancelled"),
    ],
)
def test_the_exit_status_tells_how_the_session_ended(
    at_server: Asap,
    served: Served,
    monkeypatch: pytest.MonkeyPatch,
    state: str,
    kind: str | None,
    status: int,
    says: str,
) -> None:
    error = {"kind": kind, "message": "because", "field": None} if kind else None
    end_while_waiting(served, monkeypatch, state, error=error)
    result = at_server("sessions", "submit", SCENARIO, "--wait")
    assert (result.status, result.out) == (status, "")
    assert says in result.err


@pytest.mark.parametrize("plan", ['{"tp": 4, "recompute": "none"}', "tp=4,recompute=none"])
def test_a_decision_brings_its_plan(at_server: Asap, served: Served, plan: str) -> None:
    id = served.wait_for_approval(ranks=2)
    words = ("--proposal", "2", "--plan", plan, "--comment", "why")
    assert at_server("sessions", "decide", id, "edit", *words).status == 0
    with served.app.database.read() as conn:
        (made,) = list_decisions(conn, id)
    assert (made["action"], made["proposal"], made["comment"]) == ("edit", 2, "why")
    assert made["plan"] == {"tp": 4, "recompute": "none"}


def test_a_session_is_shown_cancelled_and_retried(at_server: Asap, served: Served) -> None:
    id = served.submit()
    for action, state in (("show", "queued"), ("cancel", "cancelled"), ("retry", "queued")):
        shown = at_server("sessions", action, id, "--json").answer
        assert (shown["id"], shown["state"]) == (id, state)
    assert id in at_server("sessions", "show", id).out


def test_an_event_is_one_printable_line(at_server: Asap, served: Served) -> None:
    id = served.submit()
    with served.app.database.begin() as conn:
        append_event(conn, id, {"key": "k", "node": "n", "kind": "tool", "tool": "a\nb\x1b[31m"})
    served.client.post(f"/v1/sessions/{id}/cancel")
    lines = at_server("sessions", "events", id).out.splitlines()
    assert len(lines) == 3
    assert "[31m" in "".join(lines)
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize(
    ("kind", "status"), [("not-found", 1), ("conflict", 1), ("wrong-input", 2), ("nothing-feasible", 3)]
)
def test_a_refusal_of_the_server_is_one_line_and_its_kind_the_exit_status(
    asap: Asap, connect: Connect, kind: str, status: int
) -> None:
    problem = {"type": f"urn:asap:problem:{kind}", "detail": "the server says no"}
    connect(httpx.MockTransport(lambda _: httpx.Response(400, json=problem)))
    assert asap("sessions", "show", "s1") == (status, "", "asap: error: the server says no\n")


def test_a_session_is_forked_with_other_constraints(at_server: Asap, served: Served) -> None:
    id = served.submit()
    with served.app.database.begin() as conn:
        append_event(conn, id, {"key": "1/1/coordinator/1", "node": "coordinator", "kind": "started"})
    result = at_server("sessions", "fork", id, "--step", "2", "--constraints", "tp=4", "--json")
    changed = result.answer["forked_from"]["changed"]
    assert (changed["step"], changed["constraints"]) == (2, {"tp": 4})
    assert f"{id}, event 2 (coordinator)" in at_server("sessions", "show", result.answer["id"]).out
