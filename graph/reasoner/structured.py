"""Answers as JSON: strict schemas, extraction from text, one repair."""

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from graph.reasoner.answers import A, Question
from graph.reasoner.client import Call, Client, Completion, Message, Spend, spoken
from graph.reasoner.faults import BAD_REQUEST, MALFORMED, REFUSAL, TRUNCATED, Fault, OutputStrategy
from graph.reasoner.prompts import schema_text

Schema = dict[str, Any]
_LEFT_AWAY = ("title", "default", "maxLength", "minLength", "$defs")


def strict_schema(model: type[BaseModel]) -> Schema:
    """Every field required, none besides: what structured output in strict mode asks for."""
    whole: Schema = _all_required(lax_schema(model))
    return whole


def lax_schema(model: type[BaseModel]) -> Schema:
    """Optional fields may be left out."""
    whole = model.model_json_schema()
    plain: Schema = _written_out(whole, whole.get("$defs", {}))
    return plain


def arguments_model(name: str, function: Callable[..., object]) -> type[BaseModel]:
    """The arguments of a typed function, as a type that checks them."""
    fields: dict[str, Any] = {
        one.name: (one.annotation, ... if one.default is one.empty else one.default)
        for one in inspect.signature(function, eval_str=True).parameters.values()
    }
    return create_model(name, __config__=ConfigDict(extra="forbid"), **fields)


def _written_out(part: Any, definitions: Mapping[str, Any]) -> Any:  # noqa: ANN401 - JSON
    if isinstance(part, list):
        return [_written_out(one, definitions) for one in part]
    if not isinstance(part, dict):
        return part
    if "$ref" in part:
        return _written_out(definitions[part["$ref"].rpartition("/")[2]], definitions)
    kept = {name: one for name, one in part.items() if name not in _LEFT_AWAY}
    if "properties" in kept:  # their names are the data's own: a field may be called title
        inner = {name: _written_out(one, definitions) for name, one in kept.pop("properties").items()}
        return {**{name: _written_out(one, definitions) for name, one in kept.items()}, "properties": inner}
    return {name: _written_out(one, definitions) for name, one in kept.items()}


def _all_required(part: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(part, list):
        return [_all_required(one) for one in part]
    if not isinstance(part, dict):
        return part
    whole = {name: _all_required(one) for name, one in part.items()}
    if part.get("type") == "object" and "properties" in part:
        whole |= {"required": list(part["properties"]), "additionalProperties": False}
    return whole


MAX_TRIED = 40
MAX_ERRORS = 5
_OPENED = re.compile(r"\s*(```\w*\s*)?\{")
_THOUGHTS = re.compile(r"<think(?:ing)?>.*?</think(?:ing)?>", re.S | re.I)


class UnusableError(ValueError):
    """No valid answer in a reply; the message says what is wrong with it, for the model to mend."""

    def __init__(self, says: str, is_json: bool) -> None:
        self.is_json = is_json
        super().__init__(says)


def read_answer(text: str, answer: type[A]) -> A:
    """The first object of the text that is an answer."""
    plain = _THOUGHTS.sub("", text)
    first: UnusableError | None = None
    for found in _objects(plain):
        try:
            return check_answer(found, answer)
        except UnusableError as error:
            first = first or error
    raise first or UnusableError("there is no complete JSON object in it", bool(_OPENED.match(plain)))


def check_answer(data: Any, answer: type[A]) -> A:  # noqa: ANN401 - JSON of any shape
    """The answer, also where it stands in a wrapper of one field such as `{"answer": {...}}`."""
    try:
        return answer.model_validate(data)
    except ValidationError as error:
        inner = next(iter(data.values())) if isinstance(data, dict) and len(data) == 1 else None
        if isinstance(inner, dict):
            try:
                return answer.model_validate(inner)
            except ValidationError:
                pass  # the outer error says more
        raise UnusableError(_told(error), is_json=True) from None


def _objects(text: str) -> Iterator[object]:
    decoder = json.JSONDecoder(parse_constant=_refuse)
    start, tried = text.find("{"), 0
    while start >= 0 and tried < MAX_TRIED:
        tried += 1
        try:
            found, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            start = text.find("{", start + 1)
            continue
        yield found
        start = text.find("{", end)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _told(error: ValidationError) -> str:
    """Which fields are wrong and why; their values are left out, they may be long."""
    errors = error.errors(include_url=False, include_input=False, include_context=False)
    told = [f"{'.'.join(str(part) for part in one['loc']) or 'the object'}: {one['msg']}" for one in errors]
    return "; ".join(told[:MAX_ERRORS])[:1000]


MAX_TRAIL_CHARACTERS = 20_000
MAX_REPEATED_CHARACTERS = 4000
"""Of an unusable reply, when the model is asked to mend it."""
FILTERED = "content_filter"


@dataclass
class Conversation:
    client: Client
    messages: list[Message]
    spend: Spend
    deadline: float

    def next_reply(self, **options: object) -> Completion:
        """The model's next reply; raises Fault where there is none or the model refuses."""
        reply = self.client.complete(self.messages, options, self.deadline)
        self._count(reply, options)
        if reply.refusal or reply.finish == FILTERED:
            raise Fault(REFUSAL, "the model refuses to answer")
        self.messages.append(spoken(reply, MAX_REPEATED_CHARACTERS))
        return reply

    def tell(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})

    def hand_back(self, call: Call, result: str) -> None:
        self.messages.append({"role": "tool", "tool_call_id": call.id, "content": result})

    def _count(self, reply: Completion, options: Mapping[str, Any]) -> None:
        if reply.tokens:
            self.spend.add(*reply.tokens)
        else:
            asked = json.dumps([self.messages, options], default=str)
            self.spend.estimate(asked, reply.text + "".join(str(one.arguments) for one in reply.calls))


def trail_of(messages: Sequence[Message], spend: Spend) -> str:
    """The conversation as text, its middle left out where it is long."""
    text = "\n\n".join([*(_told_conversation(one) for one in messages), f"[{spend}]"])
    if len(text) <= MAX_TRAIL_CHARACTERS:
        return text
    half = MAX_TRAIL_CHARACTERS // 2 - 50
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"


def _told_conversation(message: Message) -> str:
    calls = [
        f"{one['function']['name']}({one['function']['arguments']})" for one in message.get("tool_calls", [])
    ]
    return "\n".join([f"[{message['role']}]", *([message["content"]] if message["content"] else []), *calls])


CUT_OFF = "length"


def answer_as_json(talk: Conversation, question: Question[A], way: OutputStrategy) -> A:
    """Asks once more where the first reply is unusable; raises Fault after that."""
    options = response_format(question, way)
    reply = talk.next_reply(**options)
    try:
        return read_answer(reply.text, question.answer)
    except UnusableError as error:
        if way is OutputStrategy.SCHEMA and not error.is_json:
            raise Fault(BAD_REQUEST, "the endpoint ignores the JSON schema") from None
        talk.tell(correction(reply, error, question, shows_schema=way is OutputStrategy.SCHEMA))
    reply = talk.next_reply(**options)
    try:
        return read_answer(reply.text, question.answer)
    except UnusableError as error:
        raise unusable(reply, error) from None


def response_format(question: Question[A], way: OutputStrategy) -> dict[str, Any]:
    if way is OutputStrategy.OBJECT:
        return {"response_format": {"type": "json_object"}}
    if way is OutputStrategy.TEXT:
        return {}
    schema = {"name": question.name, "strict": True, "schema": strict_schema(question.answer)}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def correction(reply: Completion, error: UnusableError, question: Question[A], shows_schema: bool) -> str:
    """What was wrong; with the schema where the model may never have seen it."""
    if reply.finish == CUT_OFF:
        return "That was cut off at the limit of its length. Answer again, much shorter."
    schema = f"\n{schema_text(strict_schema(question.answer))}" if shows_schema else ""
    return f"That is not a valid answer: {error}. Answer again.{schema}"


def unusable(reply: Completion, error: UnusableError) -> Fault:
    if reply.finish == CUT_OFF:
        return Fault(TRUNCATED, "the model's answer was cut off at the limit of its length, twice")
    return Fault(MALFORMED, f"the model's answer was not valid, twice: {str(error)[:300]}")
