"""A person's question about a finished session: answered by the model with its tools, or by the rules.

What the rules know is in `ask_rules`.
Every figure of an answer was written by code, from the report or from a tool's result.
"""

import re
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import wraps
from typing import cast

from pydantic import BaseModel, Field, JsonValue

from graph.answers import OUR_FAULTS, Explanation, Question, ReasonerError, SuggestedPlan, UnexpectedError
from graph.ask_rules import answer_by_rules
from graph.claims import Book, Known, remark_of
from graph.context import Context
from graph.events import brief, plain
from graph.questions import AnswerQuestion
from graph.report import Incident, Report
from graph.rules import Rules
from graph.services import outcome_of
from graph.tools import QUESTION_TOOLS, Switches, Tool, Toolbox
from tools.errors import InputError
from tools.model.calibration import Calibration
from tools.recommend.notes import apply_statements
from tools.recommend.words import short
from tools.scenario import Scenario

MAX_QUESTION = 2000
MAX_CALLS = 8
MAX_FIGURES = 40
NODE = "ask"
"""Where the incidents of an answer happened; it is not a node of the graph."""
UNITS = {"_s": " s", "_gib": " GiB", "_us": " µs", "ratio": "x", "speedup": "x", "ratio_to_first": "x"}
SHARES = ("share", "mfu", "difference")


class ToolUse(BaseModel):
    """One use of a tool for an answer."""

    tool: str
    arguments: dict[str, JsonValue]
    result: JsonValue
    """Shortened if it is long."""
    outcome: str = ""
    """The result in a few words."""


class Answered(BaseModel):
    """An answer, who wrote it, and the tools it rests on."""

    question: str
    answer: str
    by: str
    tools: list[str] = Field(default_factory=list)
    trail: list[ToolUse] = Field(default_factory=list)
    incidents: list[Incident] = Field(default_factory=list)


@dataclass
class _Trail:
    """The tools that were used for an answer, in order, and what went wrong."""

    turn: AbstractContextManager[object]
    calls: list[ToolUse] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)

    def call(self, tool: Tool, **arguments: object) -> JsonValue:
        try:
            with self.turn:
                result = tool(**arguments)
        except OUR_FAULTS as error:
            unexpected = UnexpectedError(error, tool.__name__)
            self.report(unexpected, tool=tool.__name__)
            raise unexpected from error
        stated = {
            name: value.model_dump(mode="json", exclude_none=True)
            if isinstance(value, BaseModel)
            else plain(value)
            for name, value in arguments.items()
        }
        shown: JsonValue = plain(result)
        self.calls.append(
            ToolUse(tool=tool.__name__, arguments=stated, result=brief(shown), outcome=outcome_of(result))
        )
        return shown

    def answered(self, question: str, answer: str, by: str) -> Answered:
        tools = [call.tool for call in self.calls]
        return Answered(
            question=question, answer=answer, by=by, tools=tools, trail=self.calls, incidents=self.incidents
        )

    def report(self, error: ReasonerError, tool: str | None = None, *, fell_back: bool = False) -> None:
        self.incidents.append(
            Incident(
                node=NODE,
                kind=error.kind,
                message=str(error),
                tool=tool,
                fell_back=fell_back,
                error=error.error,
                place=error.place,
            )
        )


def ask(
    question: str,
    report: Report,
    scenario: Scenario,
    context: Context,
    tenant: str | None = None,
    turn: AbstractContextManager[object] | None = None,
) -> Answered:
    """Raises InputError for an empty or overlong question; nothing of the session changes.

    `scenario` is the request's, without its notes.
    `turn` is held while something is computed, and not while a model thinks.
    """
    turn = turn or nullcontext()
    text = question.strip()
    if not 0 < len(text) <= MAX_QUESTION:
        raise InputError("question", question[:60], f"allowed: a text of 1 to {MAX_QUESTION} characters")
    box = toolbox_of(report, scenario, context, tenant)
    with turn:
        rules_trail = _Trail(nullcontext())
        by_rules = rules_trail.answered(
            text, answer_by_rules(text, report, box, rules_trail.call), Rules.name
        )
    if isinstance(context.reasoner, Rules):
        return by_rules
    trail = _Trail(turn)
    with turn:
        error = box.workload.pair_error
    book = Book.of(report.baseline, report.proposals, report.hypotheses, report.sensitivity, error)

    def recorded(tool: Tool) -> Tool:
        """Each result becomes figures `t1.name`, `t2.name` and so on; a predicted plan becomes `t1`."""

        @wraps(tool)
        def call(**arguments: object) -> object:
            result = trail.call(tool, **arguments)
            name, label = f"t{len(trail.calls)}", tool.__name__.replace("_", " ")
            plan = arguments.get("plan")
            if isinstance(plan, SuggestedPlan):
                with turn:
                    wanted = box.complete(plan)
                    switched = box.switched(cast("Switches | None", arguments.get("settings")))
                    book.plans[name] = Known(short(wanted), switched.predict([wanted])[0])
                label = f"{label} of {short(wanted)}"
            figures = dict(_figures(result, name)[:MAX_FIGURES])
            book.figures |= {
                key: f"{label}: {key.removeprefix(name + '.').replace('_', ' ')} {value}"
                for key, value in figures.items()
            }
            return {"figures": sorted(figures), "result": result}

        return call

    asked = AnswerQuestion(question=text, digest=report, by_rules=by_rules.answer)
    tools = {name: recorded(tool) for name, tool in box.named(QUESTION_TOOLS).items()}
    try:
        check = lambda answer: book.write(answer.claims)[1]  # noqa: E731
        reply = context.reasoner.ask(Question(asked, Explanation, tools, MAX_CALLS, check=check))
    except ReasonerError as error:
        trail.report(error, fell_back=True)
        return by_rules.model_copy(update={"incidents": trail.incidents})
    said, refused = book.write(reply.answer.claims)
    if refused:
        incident = Incident(node=NODE, kind="claim refused", message="; ".join(refused), fell_back=not said)
        trail.incidents.append(incident)
    if not said:
        return by_rules.model_copy(update={"incidents": trail.incidents})
    remark = remark_of(reply.answer.remark, reply.by) if context.remarks else ""
    return trail.answered(text, said + remark, reply.by)


def toolbox_of(report: Report, scenario: Scenario, context: Context, tenant: str | None = None) -> Toolbox:
    """The tools as the session had them: with what its notes state, and the cost model as it left it."""
    if report.notes and report.notes.accepted:
        scenario = apply_statements(report.notes.accepted, scenario).scenario
    start = report.proposals[(report.chosen or 1) - 1].plan
    if report.calibration:
        context = context.resumed(Calibration.from_data(report.calibration))
    return Toolbox(context, scenario, start, tenant)


def _figures(value: JsonValue, name: str) -> list[tuple[str, str]]:
    """Every number of a result by its path, formatted with the unit in its name."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return []
    if isinstance(value, dict | list):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        return [figure for key, part in parts for figure in _figures(part, f"{name}.{key}")]
    unit = next((unit for suffix, unit in UNITS.items() if name.endswith(suffix)), "")
    text = f"{value:,}{unit}" if isinstance(value, int) else f"{value:.3g}{unit}"
    if name.endswith(SHARES):
        text = f"{value:.1%}"
    return [(re.sub(r"[^a-z0-9_.]", "_", name.lower()), text)]
