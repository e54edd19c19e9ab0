"""How an answer can be had from an endpoint, the best way first, and which ways this one does not offer."""

from collections.abc import Callable, Collection
from enum import StrEnum

REOPEN_S = 3600.0
"""An endpoint gets better software, and a model that answered in words may have had a bad moment."""


class Way(StrEnum):
    TOOLS = "tools"
    """The model calls tools while it thinks, and one more to hand in its answer."""
    SCHEMA = "json_schema"
    """The endpoint holds the reply to a JSON schema."""
    OBJECT = "json_object"
    """The endpoint holds the reply to JSON; the schema stands in the prompt."""
    TEXT = "text"
    """Every endpoint can do this one; the schema stands in the prompt."""


class Ways:
    """What one endpoint offers, learnt from what it refused or ignored and what worked instead."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._closed_until: dict[Way, float] = {}
        self._proven: frozenset[Way] = frozenset()

    def open(self, with_tools: bool) -> list[Way]:
        now = self._clock()
        possible = [way for way in Way if with_tools or way is not Way.TOOLS]
        return [way for way in possible if self._closed_until.get(way, now) <= now]

    def learn(self, works: Way, refused: Collection[Way]) -> None:
        """A way that has worked before stays open: its failure was a slip of the model."""
        self._proven |= {works}
        until = self._clock() + REOPEN_S
        self._closed_until.update(dict.fromkeys(set(refused) - self._proven, until))
