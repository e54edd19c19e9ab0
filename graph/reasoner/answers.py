"""The questions that a reasoner answers, and the typed answers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from tools.errors import AsapError

Scalar = bool | int | float | str
MAX_TEXT = 2000
MAX_STATEMENTS = 12
MAX_PLANS = 3


class Answer(BaseModel):
    """Bounded, so that an endless answer is refused and not stored."""

    model_config = ConfigDict(extra="forbid")


class Statement(Answer):
    """One thing the notes say that changes the scenario."""

    quote: str = Field(max_length=500, description="the words of the notes, copied exactly")
    kind: Literal["constraint", "override", "topology"] = Field(
        description="constraint: a plan field is fixed or restricted; override: a figure of the device is "
        "other than the catalogue's; topology: the network above the node"
    )
    field: str = Field(max_length=60, description="the field's name in the vocabulary, such as tp")
    value: Scalar | list[Scalar] = Field(description="its value, or the allowed values")


class Reading(Answer):
    statements: list[Statement] = Field(max_length=MAX_STATEMENTS)


class Choice(Answer):
    step: str = Field(max_length=40, description="one of the offered steps")
    reason: str = Field(max_length=MAX_TEXT)


class Weighing(Answer):
    bottleneck: Literal["compute", "memory", "communication", "pipeline", "host"]
    reason: str = Field(max_length=MAX_TEXT)


class SuggestedPlan(Answer):
    """Fields that differ from the start plan; the data-parallel degree follows from the others."""

    tp: int | None = None
    pp: int | None = None
    vpp: int | None = None
    cp: int | None = None
    ep: int | None = None
    etp: int | None = None
    dp_shard: int | None = None
    zero_stage: int | None = None
    micro_batch_size: int | None = None
    sequence_parallel: bool | None = None
    recompute: Literal["none", "selective", "full"] | None = None
    schedule: Literal["1f1b", "interleaved", "zero_bubble", "gpipe"] | None = None


class Suggestion(Answer):
    plan: SuggestedPlan
    origin: str = Field("", max_length=100, description="the id of the playbook or case it follows, if any")
    reason: str = Field(max_length=MAX_TEXT)


class Suggestions(Answer):
    suggestions: list[Suggestion] = Field(max_length=8)


class Prose(Answer):
    """What a careful performance engineer would write above the numbers."""

    verdict: str = Field(max_length=MAX_TEXT, description="the result in one or two sentences")
    first_step: str = Field(max_length=MAX_TEXT, description="what to try first, and how to tell it worked")
    would_change: str = Field(max_length=MAX_TEXT, description="what would change the answer")
    rationales: list[str] = Field(max_length=MAX_PLANS, description="one for each proposal, in order")


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
