"""A language model calling tools: rounds, results, limits."""

import json
from typing import Any

from pydantic import BaseModel, ValidationError

from graph.events import brief
from graph.reasoner.answers import A, Question, Tools
from graph.reasoner.client import Call, Completion
from graph.reasoner.faults import BAD_REQUEST, TOOL_LOOP, Fault
from graph.reasoner.prompts import fenced, rounded
from graph.reasoner.structured import (
    Conversation,
    UnusableError,
    arguments_model,
    check_answer,
    correction,
    lax_schema,
    read_answer,
    unusable,
)
from tools.errors import DataError, InfeasibleError, InputError
from tools.kb import KnowledgeError

MAX_RESULT_CHARACTERS = 8000
Spec = dict[str, Any]
_FAILURES = (
    InputError, InfeasibleError, DataError, KnowledgeError,
    ValueError, TypeError, LookupError, ArithmeticError,
)  # fmt: skip
"""Of tools; not every AsapError: what stops the whole session must pass."""


class ToolRunner:
    """Runs what the model calls. A call that cannot be run is told to the model, not raised."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._arguments: dict[str, type[BaseModel]] = {
            name: arguments_model(name, function) for name, function in tools.items()
        }

    def specs(self) -> list[Spec]:
        return [
            spec_of(name, (function.__doc__ or name).strip(), self._arguments[name])
            for name, function in self._tools.items()
        ]

    def run(self, call: Call) -> str:
        return fenced(bounded(self._result(call)))

    def _result(self, call: Call) -> object:
        if call.name not in self._tools:
            return {"error": f"there is no such tool; there are: {', '.join(self._tools)}"}
        if call.arguments is None:
            return {"error": "the arguments are not a JSON object"}
        try:
            checked = self._arguments[call.name].model_validate(call.arguments)
            return self._tools[call.name](
                **{name: getattr(checked, name) for name in type(checked).model_fields}
            )
        except ValidationError as error:
            wrong = error.errors(include_url=False, include_input=False, include_context=False)
            return {"error": [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in wrong[:5]]}
        except _FAILURES as error:
            return {"error": f"{type(error).__name__}: {str(error)[:300]}"}


def spec_of(name: str, description: str, arguments: type[BaseModel]) -> Spec:
    parameters = {key: part for key, part in lax_schema(arguments).items() if key != "description"}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def bounded(result: object) -> object:
    """The result, shortened where it is long."""
    short = brief(rounded(result))
    text = json.dumps(short, default=str)
    return short if len(text) <= MAX_RESULT_CHARACTERS else {"cut_off": text[:MAX_RESULT_CHARACTERS]}


SUBMIT = "submit_answer"
MAX_ROUNDS = 6
MAX_CALLS_AT_ONCE = 6
ENOUGH = f"No more lookups. Call {SUBMIT} now, with what you know."


def answer_with_tools(talk: Conversation, question: Question[A]) -> A:
    """Raises Fault where the endpoint calls no tools, the loop does not end or the answer is not valid."""
    bench = ToolRunner(question.tools)
    submit = spec_of(SUBMIT, "Hand in the answer. Call it once, at the end.", question.answer)
    calling = corrected = False
    for _ in range(MAX_ROUNDS):
        reply = talk.next_reply(tools=[*bench.specs(), submit])
        calling = calling or bool(reply.calls)
        if _is_lookup(reply):
            _look_up(talk, bench, reply)
            if talk.spend.is_much:
                break
            continue
        try:
            return _submitted(reply, question.answer)
        except UnusableError as error:
            if not calling:
                raise Fault(BAD_REQUEST, "the endpoint calls no tools") from None
            if corrected:
                raise unusable(reply, error) from None
            corrected = True
            _return_unread(talk, reply, correction(reply, error, question, shows_schema=False))
    return _last_answer(talk, question, submit)


def _last_answer(talk: Conversation, question: Question[A], submit: dict[str, object]) -> A:
    """Only handing in is left to the model."""
    talk.tell(ENOUGH)
    reply = talk.next_reply(tools=[submit])
    if _is_lookup(reply):
        raise Fault(TOOL_LOOP, f"the model went on calling tools after {MAX_ROUNDS} rounds")
    try:
        return _submitted(reply, question.answer)
    except UnusableError as error:
        raise unusable(reply, error) from None


def _is_lookup(reply: Completion) -> bool:
    return bool(reply.calls) and all(call.name != SUBMIT for call in reply.calls)


def _look_up(talk: Conversation, bench: ToolRunner, reply: Completion) -> None:
    for place, call in enumerate(reply.calls):
        spare = place < MAX_CALLS_AT_ONCE
        talk.hand_back(
            call, bench.run(call) if spare else f"not run: {MAX_CALLS_AT_ONCE} calls at once are the most"
        )


def _submitted(reply: Completion, answer: type[A]) -> A:
    """The answer as it was handed in, or written out by a model that forgot to."""
    call = _hand_in(reply)
    if call is None:
        return read_answer(reply.text, answer)
    if call.arguments is None:
        raise UnusableError("the arguments are not a JSON object", is_json=False)
    return check_answer(dict(call.arguments), answer)


def _hand_in(reply: Completion) -> Call | None:
    return next((call for call in reply.calls if call.name == SUBMIT), None)


def _return_unread(talk: Conversation, reply: Completion, says: str) -> None:
    """Every call must be answered before the conversation can go on."""
    for call in reply.calls:
        talk.hand_back(call, says if call.name == SUBMIT else "not run")
    if not reply.calls:
        talk.tell(f"{says}\nHand it in by calling {SUBMIT}.")
