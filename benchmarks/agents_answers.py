"""A model that answers by files: each request is written into a folder, and its answer waited for.

An answer is an assistant's message, `{"content": "...", "tool_calls": [{"name": "...", "arguments": {}}],
"answered_by": "..."}`, by whoever has not seen the truth. Answers are kept in `agents_answers.jsonl` by a
digest of what was asked, without predicted figures: they are found again although the cost model has moved.
Without a folder only kept answers are given; what nobody has answered is left to the expert rules.
"""

import hashlib
import json
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, convert_to_openai_messages
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import ConfigDict, Field, JsonValue

from graph.agents import LanguageModel
from graph.answers import A, Question, Reply
from graph.model import CHARACTERS_PER_TOKEN, UNREACHABLE, Endpoint, Fault
from graph.questions import ConfirmReading, FindCause, ReadNotes
from graph.rules import Rules
from tools.scenario.spec import ClosedModel

FILE = Path(__file__).with_name("agents_answers.jsonl")
POLL_S = 2.0
WEEK_S = 7 * 86_400.0


class ToolCall(ClosedModel):
    name: str
    arguments: dict[str, JsonValue]


class Message(ClosedModel):
    """What an answerer writes."""

    content: str = ""
    tool_calls: list[ToolCall] = Field(default_factory=list)
    answered_by: str


class KeptAnswer(ClosedModel):
    arm: str
    task: str
    question: str
    turn: int
    digest: str
    """Of what was asked, without the figures that move with the cost model."""
    answered_at: str
    message: Message


@dataclass
class Mailbox:
    """Kept answers, and the folder in which the others are asked for."""

    folder: Path | None = None
    deadline: float | None = None
    kept: dict[tuple[str, str, str], KeptAnswer] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        for line in FILE.read_text("utf-8").splitlines() if FILE.is_file() else []:
            answer = KeptAnswer.model_validate_json(line)
            self.kept[answer.arm, answer.task, answer.digest] = answer

    def ask(
        self, arm: str, task: str, question: str, turn: int, meaning: JsonValue, request: dict[str, Any]
    ) -> Message:
        """Raises Fault if nobody has answered."""
        digest = hashlib.sha256(json.dumps([question, turn, meaning], sort_keys=True).encode()).hexdigest()[
            :16
        ]
        known = self.kept.get((arm, task, digest))
        if known is None:
            about = {"arm": arm, "task": task, "question": question, "turn": turn, "digest": digest}
            message = self._wait({**about, **request})
            known = KeptAnswer(
                arm=arm, task=task, question=question, turn=turn, digest=digest,
                answered_at=datetime.now(UTC).isoformat(timespec="seconds"), message=message,
            )  # fmt: skip
            with self.lock:
                self.kept[arm, task, digest] = known
                with FILE.open("a") as file:
                    file.write(known.model_dump_json() + "\n")
        return known.message

    def _wait(self, asked: dict[str, Any]) -> Message:
        if self.folder is None:
            raise Fault(UNREACHABLE, "nobody has answered this")
        with self.lock:
            file = self._file(self.folder / asked["arm"], asked)
        answer = file.with_suffix(".answer.json")
        while self.deadline is None or time.time() < self.deadline:
            if answer.is_file():
                try:
                    return Message.model_validate_json(answer.read_text("utf-8"))
                except ValueError as error:
                    file.with_suffix(".error.txt").write_text(str(error))
            time.sleep(POLL_S)
        raise Fault(UNREACHABLE, "nobody answered in time")

    def _file(self, place: Path, asked: dict[str, Any]) -> Path:
        """Where this is asked: the same place if it was asked before by another process."""
        place.mkdir(parents=True, exist_ok=True)
        known = [file for file in place.glob("TASK-*.json") if not file.name.endswith(".answer.json")]
        for file in known:
            earlier = json.loads(file.read_text("utf-8"))
            if (earlier["task"], earlier["digest"]) == (asked["task"], asked["digest"]):
                return file
        file = place / f"TASK-{len(known) + 1:03}.json"
        draft = file.with_suffix(".draft")
        draft.write_text(json.dumps(asked, indent=1, ensure_ascii=False))
        return draft.rename(file)


class FileChat(BaseChatModel):
    """A chat model of LangChain over a mailbox, for one question."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    mailbox: Any
    arm: str
    task: str
    question: str
    meaning: JsonValue
    asked: Any
    """Characters of each request."""

    @property
    def _llm_type(self) -> str:
        return "files"

    def bind_tools(self, tools: Sequence[Any], *, tool_choice: Any = None, **settings: Any) -> Any:  # noqa: ANN401
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **settings)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **settings: Any,  # noqa: ANN401
    ) -> ChatResult:
        said: list[JsonValue] = [
            [[call["name"], call["args"]] for call in message.tool_calls] or str(message.content)
            for message in messages
            if isinstance(message, AIMessage)
        ]
        request: dict[str, Any] = {"messages": convert_to_openai_messages(messages)}
        if tools := settings.get("tools"):
            request["tools"] = tools
        if wanted := settings.get("extra_body", {}).get("response_format"):
            request["response_format"] = wanted
        length = len(json.dumps(request, ensure_ascii=False))
        self.asked.append(length)
        message = self.mailbox.ask(
            self.arm, self.task, self.question, len(said), [self.meaning, said], request
        )
        calls = [
            {"name": call.name, "args": call.arguments, "id": f"call-{len(messages)}-{number}"}
            for number, call in enumerate(message.tool_calls)
        ]
        spoken = len(message.content) + sum(len(call.model_dump_json()) for call in message.tool_calls)
        taken, given = length // CHARACTERS_PER_TOKEN, spoken // CHARACTERS_PER_TOKEN
        usage = {"input_tokens": taken, "output_tokens": given, "total_tokens": taken + given}
        reply = AIMessage(message.content, tool_calls=calls, usage_metadata=usage)
        return ChatResult(generations=[ChatGeneration(message=reply)])


class FileModel(LanguageModel):
    """The reasoner of one session: `questions` by files, the others by the rules."""

    def __init__(self, mailbox: Mailbox, task: str, workload: JsonValue, questions: Collection[str]) -> None:
        endpoint = Endpoint(
            "http://127.0.0.1:9/v1", "recorded answers", retries=0, timeout_s=WEEK_S, deadline_s=WEEK_S
        )
        super().__init__(endpoint)
        self._mailbox, self._task, self._workload = mailbox, task, workload
        self._questions = questions
        self._current: FileChat | None = None
        self.asked: list[int] = []

    def ask(self, question: Question[A]) -> Reply[A]:
        if question.name not in self._questions:
            return Rules().ask(question)
        self._current = FileChat(
            mailbox=self._mailbox, arm="graph", task=self._task, question=question.name,
            meaning=self._meaning(question), asked=self.asked,
        )  # fmt: skip
        return super().ask(question)

    def _meaning(self, question: Question[A]) -> JsonValue:
        """What the answer rests on, as far as it does not move with the cost model."""
        match question.about:
            case ReadNotes(notes=notes):
                return notes
            case ConfirmReading(quote=quote, statement=statement):
                return [quote, statement]
            case FindCause(competing=competing, to_test=to_test):
                return [*sorted(hypothesis.cause for hypothesis in competing), to_test]
        return self._workload

    @property
    def _chat(self) -> Any:  # noqa: ANN401 - in place of ChatOpenAI
        return self._current
