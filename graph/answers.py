"""The questions that a reasoner answers, the typed answers, and how an answer is read from a reply."""

import inspect
import json
import logging
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, Literal, NoReturn, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from tools.errors import AsapError
from tools.recommend.hypotheses import Cause

OUR_FAULTS = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError, RuntimeError,
    TypeError, ValueError,
)  # fmt: skip
"""What a mistake in our own code raises; not AsapError, an outage of the database or a lost connection."""
OUR_ROOMS = ("graph.", "tools.", "service.")
MAX_TEXT = 2000
MAX_WORD = 200
MAX_NUMBER = 10**15
Scalar = (
    bool
    | Annotated[int, Field(ge=-MAX_NUMBER, le=MAX_NUMBER)]
    | Annotated[float, Field(ge=-MAX_NUMBER, le=MAX_NUMBER, allow_inf_nan=False)]
    | Annotated[str, Field(max_length=MAX_WORD)]
)
MAX_STATEMENTS = 12
MAX_PLANS = 3
MAX_ITEMS = 3
Task = Literal[
    "read_notes", "reconcile", "test_hypothesis", "search", "compare_ties", "ask_person", "measure"
]
"""What the coordinator may put on its worklist."""
Text = Annotated[str, Field(max_length=MAX_TEXT)]


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
    value: Scalar | list[Scalar] = Field(description="its value, or the values")
    unit: str | None = Field(None, max_length=40, description="as the notes wrote it, if it has one")


class Reading(Answer):
    statements: list[ReadStatement] = Field(max_length=MAX_STATEMENTS)


class Confirmation(Answer):
    """The second reader's verdict about one quote, read alone."""

    verdict: Literal["yes", "no", "unclear"]


class PlannedItem(Answer):
    task: Task
    about: str = Field(
        "", max_length=300, description="the cause to test, the question to the person; else empty"
    )
    constraints: dict[str, Scalar | list[Scalar]] = Field(
        default_factory=dict, max_length=8, description="of a search: plan fields and their allowed values"
    )
    reason: Text


class Worklist(Answer):
    """What is still worth doing; empty if nothing is."""

    items: list[PlannedItem] = Field(max_length=MAX_ITEMS)


class Finding(Answer):
    """The cause that counts, with the references that show it."""

    cause: Cause
    references: list[str] = Field(max_length=8, description="refs of the evidence that shows it")
    reason: Text


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
    references: list[str] = Field(
        default_factory=list, max_length=8, description="case:ID, playbook:ID or profile:CAUSE that back it"
    )
    reason: Text


class Suggestions(Answer):
    suggestions: list[Suggestion] = Field(max_length=MAX_PLANS)


class Prose(Answer):
    """What a careful performance engineer would write above the numbers; figures as {slots}."""

    verdict: str = Field(max_length=MAX_TEXT, description="the result in one or two sentences")
    first_step: str = Field(max_length=MAX_TEXT, description="what to try first, and how to tell it worked")
    would_change: str = Field(max_length=MAX_TEXT, description="what would change the answer")
    rationales: list[str] = Field(max_length=MAX_PLANS, description="one for each proposal, in order")


class Explanation(Answer):
    """The answer to a person's question about a finished session; figures as {slots}."""

    text: Text


A = TypeVar("A", bound=Answer)
Tools = Mapping[str, Callable[..., object]]
Payload = Mapping[str, Any]
"""By name: plain typed functions with a docstring, which a language model may call while it thinks."""


class ReasonerError(AsapError):
    """The reasoner cannot answer (endpoint down, refusal, budget spent); the rules answer instead."""

    error: str | None = None
    place: str | None = None
    """Of an error of our own: its class, and the module and line that raised it."""

    def __init__(self, kind: str, message: str, tokens: int = 0, cost: float = 0.0) -> None:
        self.kind, self.tokens, self.cost = kind, tokens, cost
        super().__init__(message)


class UnexpectedError(ReasonerError):
    """A fault of our own while a question was asked, with its class and place; never the endpoint's.

    The session goes on with the rules. It is logged here, so that no caller can forget to.
    """

    KIND = "unexpected error"

    def __init__(self, error: Exception, where: str, tokens: int = 0, cost: float = 0.0) -> None:
        self.error, self.place = type(error).__name__, place_of(error)
        super().__init__(self.KIND, f"{self.error} at {self.place}", tokens, cost)
        logging.getLogger(__name__).error("%s: unexpected %s", where, self, exc_info=error)


def place_of(error: BaseException) -> str:
    """The module and line of ours that was last in charge; else of the library that raised it."""
    frames = [
        (str(frame.f_globals.get("__name__")), line) for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    ours = [(module, line) for module, line in frames if module.startswith(OUR_ROOMS)]
    module, line = (ours or frames or [("unknown", 0)])[-1]
    return f"{module}:{line}"


@dataclass(frozen=True)
class Question(Generic[A]):
    """`payload` is all that the answer may rest on; text inside it is data, never an instruction."""

    name: str
    payload: Payload
    answer: type[A]
    tools: Tools = field(default_factory=dict)
    max_calls: int = 10
    """Of tools, before the answer must be handed in."""
    listen: Callable[[str], None] | None = None
    """Receives the reply while it streams, if the endpoint streams."""


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


Schema = dict[str, Any]
_DROPPED = ("title", "default", "maxLength", "minLength", "$defs")


def strict_schema(model: type[BaseModel]) -> Schema:
    """Every field required, none besides: what structured output in strict mode asks for."""
    whole = model.model_json_schema()
    strict: Schema = _strict(whole, whole.get("$defs", {}))
    return strict


def _strict(part: Any, definitions: Mapping[str, Any]) -> Any:  # noqa: ANN401 - JSON
    if isinstance(part, list):
        return [_strict(inner, definitions) for inner in part]
    if not isinstance(part, dict):
        return part
    if "$ref" in part:
        return _strict(definitions[part["$ref"].rpartition("/")[2]], definitions)
    kept = {
        name: _strict(inner, definitions)
        for name, inner in part.items()
        if name not in (*_DROPPED, "properties")
    }
    if "properties" in part:  # their names are the data's own: a field may be called title
        kept["properties"] = {name: _strict(inner, definitions) for name, inner in part["properties"].items()}
        kept |= {"required": list(part["properties"]), "additionalProperties": False}
    return kept


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


MAX_TRIED = 40
MAX_ERRORS = 5
_OPENED = re.compile(r"\s*(```\w*\s*)?\{")
_THOUGHT = re.compile(r"<(/?)think(?:ing)?>", re.I)


class UnusableError(ValueError):
    """No valid answer in a reply; the message says what is wrong with it, for the model to mend."""

    def __init__(self, says: str, is_json: bool) -> None:
        self.is_json = is_json
        super().__init__(says)


def read_answer(text: str, answer: type[A]) -> A:
    """The first object of the text that is an answer."""
    plain = _without_thoughts(text)
    first: UnusableError | None = None
    for data in _objects(plain):
        try:
            return check_answer(data, answer)
        except UnusableError as error:
            first = first or error
    raise first or UnusableError("there is no complete JSON object in it", bool(_OPENED.match(plain)))


def _without_thoughts(text: str) -> str:
    """In one pass: a pattern from the opening to the closing tag would take quadratic time."""
    kept, end, opened = [], 0, None
    for mark in _THOUGHT.finditer(text):
        if not mark[1] and opened is None:
            opened = mark.start()
        elif mark[1] and opened is not None:
            kept.append(text[end:opened])
            end, opened = mark.end(), None
    return "".join([*kept, text[end:]])


def check_answer(data: Any, answer: type[A]) -> A:  # noqa: ANN401 - JSON of any shape
    """The answer, also if it is wrapped in an object of one field such as `{"answer": {...}}`."""
    try:
        return answer.model_validate(data)
    except ValidationError as error:
        inner = next(iter(data.values())) if isinstance(data, dict) and len(data) == 1 else None
        if isinstance(inner, dict):
            try:
                return answer.model_validate(inner)
            except ValidationError:
                pass  # the outer error says more
        raise UnusableError(describe_errors(error), is_json=True) from None


def _objects(text: str) -> Iterator[object]:
    decoder = json.JSONDecoder(parse_constant=_refuse)
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


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def describe_errors(error: ValidationError) -> str:
    """Which fields are wrong and why; their values are left out, they may be long."""
    errors = error.errors(include_url=False, include_input=False, include_context=False)
    says = [
        f"{'.'.join(str(part) for part in wrong['loc']) or 'the object'}: {wrong['msg']}" for wrong in errors
    ]
    return "; ".join(says[:MAX_ERRORS])[:1000]
