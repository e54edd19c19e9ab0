"""What the nodes work with: who reasons, what is known, what may be spent. Made by the service."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from graph.reasoner.question import Reasoner
from graph.reasoner.rules import Rules
from tools.cost.calibration import Calibration
from tools.kb import KnowledgeBase


@dataclass(frozen=True)
class Limits:
    """What one session may spend."""

    session_s: float = 900.0
    steps: int = 60
    tokens: int = 200_000
    cost: float = 5.0
    rounds: int = 2
    """How often the proposal agent may be sent back to work."""


class TrialRunner(Protocol):
    """Measures one plan on the user's cluster; the same key never launches twice."""

    def run(self, key: str, scenario: dict[str, Any], plan: dict[str, Any]) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Context:
    knowledge: KnowledgeBase
    reasoner: Reasoner = field(default_factory=Rules)
    learns: bool = False
    """Whether outcomes are kept in the knowledge base."""
    calibration: Calibration | None = None
    trials: TrialRunner | None = None
    limits: Limits = Limits()
    clock: Callable[[], float] = time.time
    progress: Callable[[float], None] | None = None
    """Told how far the search is, where somebody watches."""
