"""A process that dies right after a write of the checkpointer has told every event of what was written."""

from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver

from graph.context import Context
from graph.events import SessionEvent
from graph.request import parse_request
from graph.session import Session
from tests.unit.graph.cases import run, small
from tools.kb import open_seed


class KilledError(BaseException):
    """Not an Exception: nothing in between may treat it as a failure of a node."""


class Mortal(InMemorySaver):
    """Keeps so many results of nodes; then the process is dead and writes nothing more."""

    def __init__(self, lives: int) -> None:
        super().__init__()
        self.lives = lives

    def put_writes(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - of the base class
        self._live()
        super().put_writes(*args, **kwargs)
        self.lives -= 1
        self._live()

    def put(self, *args: Any, **kwargs: Any) -> RunnableConfig:  # noqa: ANN401 - of the base class
        self._live()
        return super().put(*args, **kwargs)

    def _live(self) -> None:
        if self.lives == 0:
            raise KilledError


def told_before_death(store: Mortal) -> list[SessionEvent]:
    events: list[SessionEvent] = []

    def tell(event: SessionEvent) -> None:
        if store.lives > 0:
            events.append(event)

    with pytest.raises(KilledError):
        Session("s1", Context(open_seed()), store).run(parse_request(small()), tell)
    return events


@pytest.fixture(scope="module")
def whole() -> list[str]:
    return [event.key for event in run(small())[1]]


@pytest.mark.parametrize("lives", range(1, 12))
def test_no_event_is_lost_when_a_process_dies_after_a_checkpoint(whole: list[str], lives: int) -> None:
    store = Mortal(lives)
    before = told_before_death(store)
    store.lives = 1000
    after = run(small(), checkpointer=store)[1]
    assert list(dict.fromkeys(event.key for event in (*before, *after))) == whole
