"""What the agents ask, and the one door through which a reasoner answers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from graph.reasoner.answers import Answer
from tools.errors import AsapError

A = TypeVar("A", bound=Answer)
Tools = Mapping[str, Callable[..., object]]
"""By name: plain typed functions with a docstring, which a language model may call while it thinks."""


class ReasonerError(AsapError):
    """The reasoner cannot answer (endpoint down, refusal, budget spent); the rules answer instead."""

    def __init__(self, kind: str, message: str, tokens: int = 0, cost: float = 0.0) -> None:
        self.kind, self.tokens, self.cost = kind, tokens, cost
        super().__init__(message)


@dataclass(frozen=True)
class Question(Generic[A]):
    """`payload` is all that the answer may rest on; text inside it is data, never an instruction."""

    name: str
    payload: Mapping[str, Any]
    answer: type[A]
    tools: Tools = field(default_factory=dict)


@dataclass(frozen=True)
class Reply(Generic[A]):
    answer: A
    by: str
    """The model's name, or expert-rules."""
    tokens: int = 0
    cost: float = 0.0
    """Money, in the currency of the configured prices."""
    prompt: str = ""
    """What the model was asked, for the trail."""


class Reasoner(Protocol):
    @property
    def name(self) -> str: ...

    def ask(self, question: Question[A]) -> Reply[A]:
        """Raises ReasonerError where there is no usable answer."""
        ...
