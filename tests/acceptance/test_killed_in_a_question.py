"""A server killed with -9 while a model thinks: the session goes on, and no reply is paid for twice."""

import signal
from pathlib import Path
from threading import Event

import pytest

from tests.acceptance.model import NAME, Model
from tests.acceptance.product import serving, wait_for
from tests.integration.llm import replies
from tests.integration.llm.replies import Played, Seen

NOTES = "Pretty please: the width of a tensor shall never again be more than 4."
READING = {
    "statements": [
        {"quote": "never again be more than 4", "field": "tp", "operator": "<=", "value": 4, "unit": None}
    ]
}
"""What the rules do not see in these words, so that each statement is confirmed by two more questions."""
ONCE = dict.fromkeys(["read_notes", "find_cause", "propose_plans", "revise_worklist", "explain"], 1)


class Hanging:
    """Holds the reply to one question until the server that asked it is dead."""

    def __init__(self, model: Model, question: str, answered_before: int) -> None:
        self._model, self._question, self._answered_before = model, question, answered_before
        self.is_asked, self._is_over = Event(), Event()

    def __call__(self, seen: Seen) -> Played | None:
        is_it = (
            seen.question == self._question and self._model.answered[self._question] == self._answered_before
        )
        if not is_it or self._is_over.is_set():
            return None
        self.is_asked.set()
        self._is_over.wait(60.0)
        return replies.dropped()(seen)

    def give_up(self) -> None:
        self._is_over.set()


@pytest.mark.parametrize(
    ("database", "question", "answered_before"),
    [("sqlite", "confirm_reading", 1), ("postgresql", "propose_plans", 0)],
)
def test_replies_that_came_before_the_kill_are_not_asked_for_again(
    tmp_path: Path, request: pytest.FixtureRequest, database: str, question: str, answered_before: int
) -> None:
    settings: dict[str, object] = {"lease_s": 1}
    if database == "postgresql":
        settings["database_url"] = request.getfixturevalue("postgres_url")
    with Model() as model:
        settings |= model.settings
        model.answers = {**model.answers, "read_notes": READING}
        model.before = hanging = Hanging(model, question, answered_before)
        with serving(tmp_path, **settings) as server:
            id = server.submit(notes=NOTES)
            wait_for(hanging.is_asked.is_set)
            assert server.session(id)["state"] == "running"
            known = model.answered.copy()
            assert server.kill() == -signal.SIGKILL, "it was alive until then"
        hanging.give_up()
        with serving(tmp_path, **settings) as server:
            report = server.report(id)
    assert known["read_notes"] == 1
    assert known[question] == answered_before
    assert model.asked[question] > answered_before
    assert dict(model.answered) == {**ONCE, "confirm_reading": 2}
    assert report["usage"]["answered"] == model.answered.total()
    assert report["notes"]["accepted"][0]["value"] == 4
    assert report["authors"]["rationale 1"] == NAME
    assert report["incidents"] == []


class HangingAfterTools(Hanging):
    """Holds the request that comes after the tools of a question were called and have answered."""

    def __call__(self, seen: Seen) -> Played | None:
        looked_up = any(message["role"] == "tool" for message in seen.messages)
        return super().__call__(seen) if looked_up else None


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_a_conversation_killed_between_two_requests_goes_on_with_the_second(
    tmp_path: Path, request: pytest.FixtureRequest, database: str
) -> None:
    settings: dict[str, object] = {"lease_s": 1}
    if database == "postgresql":
        settings["database_url"] = request.getfixturevalue("postgres_url")
    with Model() as model:
        settings |= model.settings
        model.before = hanging = HangingAfterTools(model, "propose_plans", 0)
        with serving(tmp_path, **settings) as server:
            id = server.submit()
            wait_for(hanging.is_asked.is_set)
            assert server.kill() == -signal.SIGKILL, "it was alive until then"
        hanging.give_up()
        asked, looked_up = model.asked["propose_plans"], model.looked_up.copy()
        with serving(tmp_path, **settings) as server:
            report = server.report(id)
    assert asked == 2, "one request with tools, and the one that hung"
    assert model.asked["propose_plans"] == asked + 1
    assert model.looked_up == looked_up
    assert looked_up["find_knowledge"] == 2, "in the diagnosis, and here before the kill"
    assert report["incidents"] == []
    assert report["authors"]["rationale 1"] == NAME
