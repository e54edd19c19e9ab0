"""What a reasoner is asked and answers, typed, and how an answer is read from a model's reply."""

import inspect
import json
import logging
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Generic,
    Literal,
    NoReturn,
    Protocol,
    TypeVar,
    cast,
)

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, create_model

from tools.errors import AsapError
from tools.recommend.hypotheses import HypothesisCause
from tools.scenario.spec import Plan

OUR_FAULTS = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError, RuntimeError,
    TypeError, ValueError,
)  # fmt: skip
"""What a mistake in our own code raises; not AsapError, an outage of the database or a lost connection."""
OUR_ROOMS = ("graph.", "tools.", "service.")
MAX_CLAIMS = 8
MAX_REMARK = 200
MAX_WORD = 200
MAX_NUMBER = 10**15
BoundedValue = (
    bool
    | Annotated[int, Field(ge=-MAX_NUMBER, le=MAX_NUMBER)]
    | Annotated[float, Field(ge=-MAX_NUMBER, le=MAX_NUMBER, allow_inf_nan=False)]
    | Annotated[str, Field(max_length=MAX_WORD)]
)
MAX_STATEMENTS = 12
MAX_PLANS = 3
MAX_ITEMS = 3
MAX_TRIED = 40
MAX_ERRORS = 5
_LEFT_OUT = ("title", "default", "maxLength", "minLength", "$defs")
"""Keywords of JSON schema that endpoints refuse in strict mode."""
_OPENED = re.compile(r"\s*(```\w*\s*)?\{")
_THOUGHT = re.compile(r"<(/?)think(?:ing)?>", re.I)
Task = Literal[
    "read_notes", "reconcile", "test_hypothesis", "search", "compare_ties", "ask_person", "measure"
]
"""What the coordinator may put on its worklist."""
Relation = Literal[
    "limited_by", "spends_on", "faster_than", "slower_than", "even_with", "needs_less_memory_than",
    "needs_more_memory_than", "fits", "does_not_fit", "shrinks", "grows", "changes", "backed_by", "risks",
    "measured", "alters_the_answer", "figure",
]  # fmt: skip
"""What a claim may say; `graph.claims` checks each against the figures and writes its sentence."""
Purpose = Literal[
    "evidence_is_thin", "model_and_measurement_differ", "no_proposal_has_it", "too_close_to_call",
    "only_a_person_knows", "a_run_would_settle_it",
]  # fmt: skip
PersonTopic = Literal[
    "may_change", "batch_may_change", "checkpoints_must_load", "memory_kept_free", "network_shared", "fabric",
    "clocks", "data_loading", "step_is_steady", "traces_of_this_job",
]  # fmt: skip
"""What a person may be asked; the words are code's."""


class Answer(BaseModel):
    """Bounded, so that an endless answer is refused and not stored."""

    model_config = ConfigDict(extra="forbid")


class ReadStatement(Answer):
    """One thing the notes state that changes the scenario."""

    quote: str = Field(max_length=500, description="the words of the notes, copied exactly")
    field: str = Field(max_length=60, description="the field's name in the vocabulary, such as tp")
    operator: Literal["=", "in", "not", "<=", ">=", "keep"] = Field(
        description="keep: the field keeps today's value; not: these values are excluded"
    )
    value: BoundedValue | list[BoundedValue] = Field(description="its value, or the values")
    unit: str | None = Field(None, max_length=40, description="as the notes wrote it, if it has one")


class Reading(Answer):
    statements: list[ReadStatement] = Field(max_length=MAX_STATEMENTS)


class Confirmation(Answer):
    """The second reader's verdict about one quote, read alone."""

    verdict: Literal["yes", "no", "unclear"]


class Bounds(Answer):
    """What a plan field may be, other than a list of values."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)
    min: int | None = None
    max: int | None = None
    excluded: list[BoundedValue] | None = Field(None, alias="not", max_length=16)


class Claim(Answer):
    """One statement that code can check; code writes the sentence and its figures."""

    subject: str = Field(max_length=120, description="today, p1, p2, p3; if1, if2, ...; t1, t1.NAME, t2, ...")
    relation: Relation
    object: str = Field("", max_length=120, description="a plan, a cause, a term, a field, a ref; or empty")
    evidence: list[str] = Field(
        default_factory=list, max_length=4, description="refs of the subject's evidence that show it"
    )


Claims = Annotated[list[Claim], Field(max_length=MAX_CLAIMS)]
Remark = Annotated[str, Field(max_length=MAX_REMARK, description="usually empty; quoted as unchecked")]


class PlannedItem(Answer):
    task: Task
    cause: HypothesisCause | None = Field(None, description="of test_hypothesis")
    topic: PersonTopic | None = Field(None, description="of ask_person")
    field: str = Field("", max_length=40, description="of ask_person about may_change: the plan field")
    constraints: dict[str, BoundedValue | list[BoundedValue] | Bounds] = Field(
        default_factory=dict,
        max_length=8,
        description='of a search: a plan field with a value, a list, or {"min": n, "max": n, "not": [...]}',
    )
    purpose: Purpose


class Worklist(Answer):
    """What is still worth doing; empty if nothing is."""

    items: list[PlannedItem] = Field(max_length=MAX_ITEMS)


class Finding(Answer):
    """The cause that counts, with the references that show it."""

    cause: HypothesisCause
    references: list[str] = Field(max_length=8, description="refs of the evidence that shows it")


if TYPE_CHECKING:
    # Made from `Plan` below; type checkers see the fields that are read by name.
    class SuggestedPlan(Answer):
        tp: int | None = None
        zero_stage: int | None = None

else:
    SuggestedPlan = create_model(
        "SuggestedPlan",
        __base__=Answer,
        __module__=__name__,
        __doc__="Fields that differ from the start plan; the data-parallel degree follows from the others.",
        **{
            name: (field.annotation | None, None) for name, field in Plan.model_fields.items() if name != "dp"
        },
    )


class Suggestion(Answer):
    plan: SuggestedPlan
    references: list[str] = Field(
        default_factory=list, max_length=8, description="case:ID, playbook:ID or profile:CAUSE that back it"
    )
    claims: Claims = Field(default_factory=list, description="about p1, which is the suggested plan here")


class Suggestions(Answer):
    suggestions: list[Suggestion] = Field(max_length=MAX_PLANS)


class Explained(Answer):
    """What a careful performance engineer would say above the numbers."""

    verdict: Claims = Field(description="what limits today, and what the chosen proposal brings")
    would_change: Claims = Field(description="alters_the_answer of the entries that matter")
    rationales: list[Claims] = Field(max_length=MAX_PLANS, description="one for each proposal, in order")
    remark: Remark = ""


class Explanation(Answer):
    """The answer to a person's question about a finished session; no claims if nothing tells."""

    claims: Claims
    remark: Remark = ""


A = TypeVar("A", bound=Answer)
Tools = Mapping[str, Callable[..., object]]
"""By name: plain typed functions with a docstring, which a language model may call while it thinks."""


class ReasonerError(AsapError):
    """The reasoner cannot answer (endpoint down, refusal, budget spent); the rules answer instead."""

    error: str | None = None
    place: str | None = None
    """Class of an error of our own, and the module and line that raised it."""

    def __init__(self, kind: str, message: str, tokens: int = 0, cost: float = 0.0) -> None:
        self.kind, self.tokens, self.cost = kind, tokens, cost
        super().__init__(message)


class UnexpectedError(ReasonerError):
    """A fault of our own while a question was asked, with its class and place; never the endpoint's.

    The session goes on with the rules. It is logged here, so that no caller can forget to.
    """

    KIND = "unexpected error"

    def __init__(self, error: Exception, where: str, tokens: int = 0, cost: float = 0.0) -> None:
        frames = [
            (str(frame.f_globals.get("__name__")), line)
            for frame, line in traceback.walk_tb(error.__traceback__)
        ]
        ours = [(module, line) for module, line in frames if module.startswith(OUR_ROOMS)]
        module, line = (ours or frames or [("unknown", 0)])[-1]  # ours that was last in charge, else theirs
        self.error, self.place = type(error).__name__, f"{module}:{line}"
        super().__init__(self.KIND, f"{self.error} at {self.place}", tokens, cost)
        logging.getLogger(__name__).error("%s: unexpected %s", where, self, exc_info=error)


class Asked(BaseModel):
    """All that an answer may rest on; text inside it is data, never an instruction."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: ClassVar[str]


class KeptCall(Answer):
    """What one request to a model's endpoint came to."""

    asked: str
    """A digest of what was asked."""
    reply: str | None
    """LangChain's message as JSON text: a checkpoint takes no number beyond 64 bits. None if none came."""


@dataclass(frozen=True)
class Question(Generic[A]):
    about: Asked
    answer: type[A]
    tools: Tools = field(default_factory=dict)
    max_calls: int = 10
    """Tool calls before the answer must be handed in."""
    listen: Callable[[str], None] | None = None
    """Receives the reply while it streams, if the endpoint streams."""
    hidden: re.Pattern[str] | None = None
    """What of all texts must not leave the installation."""
    keep: Callable[[Callable[[], KeptCall]], KeptCall] = lambda call: call()
    """Keeps one request's outcome, in the order of requests: a conversation that is begun again, after a
    crash, is given it without a request."""
    check: Callable[[A], list[str]] | None = None
    """What of an answer does not hold; its author may mend it once."""

    @property
    def name(self) -> str:
        return self.about.name

    @cached_property
    def payload(self) -> dict[str, Any]:
        """What a model is shown of it."""
        return self.about.model_dump(mode="json")


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
        """Raises ReasonerError if there is no usable answer."""
        ...


@dataclass(frozen=True)
class Redacted:
    """A reasoner that is never told what the pattern matches."""

    reasoner: Reasoner
    hidden: re.Pattern[str]

    @property
    def name(self) -> str:
        return self.reasoner.name

    def ask(self, question: Question[A]) -> Reply[A]:
        return self.reasoner.ask(replace(question, hidden=self.hidden))


def strict_schema(model: type[BaseModel]) -> JsonValue:
    """Every field required, none besides: what structured output in strict mode asks for."""
    whole = model.model_json_schema()

    def strict(part: JsonValue) -> JsonValue:
        if isinstance(part, list):
            return [strict(inner) for inner in part]
        if not isinstance(part, dict):
            return part
        if "$ref" in part:
            return strict(whole["$defs"][str(part["$ref"]).rpartition("/")[2]])
        kept = {name: strict(inner) for name, inner in part.items() if name not in _LEFT_OUT}
        if "properties" in part:  # their names are the data's own: a field may be called title
            properties = cast("dict[str, JsonValue]", part["properties"])
            kept["properties"] = {name: strict(inner) for name, inner in properties.items()}
            kept |= {"required": list(properties), "additionalProperties": False}
        return kept

    return strict(whole)


def arguments_model(name: str, function: Callable[..., object]) -> type[BaseModel]:
    """The arguments of a typed function, as a type that checks them."""
    fields: dict[str, Any] = {
        parameter.name: (
            parameter.annotation,
            ... if parameter.default is parameter.empty else parameter.default,
        )
        for parameter in inspect.signature(function, eval_str=True).parameters.values()
    }
    return create_model(name, __config__=ConfigDict(extra="forbid"), **fields)


class UnusableError(ValueError):
    """No valid answer in a reply; the message says what is wrong with it, for the model to mend."""

    def __init__(self, message: str, is_json: bool) -> None:
        self.is_json = is_json
        super().__init__(message)


def read_answer(text: str, answer: type[A]) -> A:
    """The first object of the text that is an answer."""
    # Thoughts go in one pass: a pattern from the opening to the closing tag would take quadratic time.
    kept, end, opened = [], 0, None
    for mark in _THOUGHT.finditer(text):
        if not mark[1] and opened is None:
            opened = mark.start()
        elif mark[1] and opened is not None:
            kept.append(text[end:opened])
            end, opened = mark.end(), None
    spoken = "".join([*kept, text[end:]])
    first: UnusableError | None = None
    for data in _objects(spoken):
        try:
            return check_answer(data, answer)
        except UnusableError as error:
            first = first or error
    raise first or UnusableError("there is no complete JSON object in it", bool(_OPENED.match(spoken)))


def _objects(text: str) -> Iterator[object]:
    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not JSON")

    decoder = json.JSONDecoder(parse_constant=refuse)
    start, tried = text.find("{"), 0
    while start >= 0 and tried < MAX_TRIED:
        tried += 1
        try:
            data, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            start = text.find("{", start + 1)
            continue
        yield data
        start = text.find("{", end)


def check_answer(data: object, answer: type[A]) -> A:
    """The answer, also if it is wrapped in an object of one field such as `{"answer": {...}}`."""
    try:
        return answer.model_validate(data)
    except ValidationError as error:
        inner = next(iter(data.values())) if isinstance(data, dict) and len(data) == 1 else None
        if isinstance(inner, dict):
            with suppress(ValidationError):  # the outer error says more
                return answer.model_validate(inner)
        raise UnusableError(describe_errors(error), is_json=True) from None


def describe_errors(error: ValidationError) -> str:
    """Which fields are wrong and why; their values are left out, they may be long."""
    errors = error.errors(include_url=False, include_input=False, include_context=False)
    wrong = [f"{'.'.join(map(str, entry['loc'])) or 'the object'}: {entry['msg']}" for entry in errors]
    return "; ".join(wrong[:MAX_ERRORS])[:1000]
