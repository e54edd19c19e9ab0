"""Recorded sessions: each question with its tool calls and its answer, as JSON lines.

The first line says what answered and when. A recording is replayed without the model: the same tools run
again with the same arguments, and the recorded answers are judged by today's code. What is not recorded is
left to the expert rules.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Literal

from pydantic import Field, JsonValue, ValidationError

from graph.answers import (
    A,
    Question,
    Reasoner,
    ReasonerError,
    Reply,
    arguments_model,
    check_answer,
    describe_errors,
)
from graph.events import plain
from tools.errors import AsapError, InputError
from tools.scenario.spec import ClosedModel

FORMAT: Literal["asap-cassette-1"] = "asap-cassette-1"


class Label(ClosedModel):
    """What a cassette holds."""

    format: Literal["asap-cassette-1"] = FORMAT
    answered_by: str
    """The model, and how it was reached."""
    recorded_at: str
    request: dict[str, JsonValue]
    """The body of the session."""


class RecordedCall(ClosedModel):
    tool: str
    arguments: dict[str, JsonValue]
    result: JsonValue


class Exchange(ClosedModel):
    """One question of a session."""

    question: str
    request: dict[str, JsonValue]
    calls: list[RecordedCall] = Field(default_factory=list)
    answer: dict[str, JsonValue]
    tokens: int


class Recorder:
    """A reasoner that writes what another one is asked and answers."""

    def __init__(self, reasoner: Reasoner, file: Path, label: Label) -> None:
        self._reasoner, self._file = reasoner, file
        file.write_text(label.model_dump_json() + "\n")

    @property
    def name(self) -> str:
        return self._reasoner.name

    def ask(self, question: Question[A]) -> Reply[A]:
        calls: list[RecordedCall] = []
        tools = {name: _recorded(name, tool, calls) for name, tool in question.tools.items()}
        reply = self._reasoner.ask(replace(question, tools=tools))
        exchange = Exchange(
            question=question.name,
            request=plain(question.payload),
            calls=calls,
            answer=reply.answer.model_dump(mode="json"),
            tokens=reply.tokens,
        )
        with self._file.open("a") as file:
            file.write(exchange.model_dump_json() + "\n")
        return reply


class Replay:
    """A reasoner that answers from a cassette, question by question in the order of the recording."""

    def __init__(self, file: Path) -> None:
        self.label, self.exchanges = read_cassette(file)
        self._left = list(self.exchanges)

    @property
    def name(self) -> str:
        return self.label.answered_by

    def ask(self, question: Question[A]) -> Reply[A]:
        exchange = next((recorded for recorded in self._left if recorded.question == question.name), None)
        if exchange is None:
            raise ReasonerError("cassette", "the recording has no further answer to this question")
        self._left.remove(exchange)
        for call in exchange.calls:
            if call.tool in question.tools:
                _run_again(question.tools[call.tool], call)
        answer = check_answer(exchange.answer, question.answer)
        return Reply(answer, self.name, exchange.tokens)


def read_cassette(file: Path) -> tuple[Label, list[Exchange]]:
    """Raises InputError for a file that is none."""
    lines = file.read_text("utf-8").splitlines() or [""]
    try:
        label = Label.model_validate_json(lines[0])
        return label, [Exchange.model_validate_json(line) for line in lines[1:]]
    except ValidationError as error:
        raise InputError(
            file.name, "a line", f"a cassette of the format {FORMAT}: {describe_errors(error)}"
        ) from None


def _recorded(name: str, tool: Callable[..., object], calls: list[RecordedCall]) -> Callable[..., object]:
    @wraps(tool)
    def call(**arguments: object) -> object:
        result = tool(**arguments)
        calls.append(RecordedCall(tool=name, arguments=plain(arguments), result=json.loads(_json(result))))
        return result

    return call


def _json(value: object) -> str:
    return json.dumps(plain(value), default=str)


def _run_again(tool: Callable[..., object], call: RecordedCall) -> None:
    """A tool that refuses today what it took then has changed; the answer is judged all the same."""
    try:
        checked = arguments_model(call.tool, tool).model_validate(call.arguments)
        tool(**{name: getattr(checked, name) for name in type(checked).model_fields})
    except (AsapError, ValueError):
        return
