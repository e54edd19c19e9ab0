"""A person's question about a finished session: answered by the model with its tools, or by the rules.

The rules know why not a plan, what if another plan or other devices, what limits the job, how sure that is.
Every figure of an answer was written by code, from the report or from a tool's result.
"""

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from pydantic import BaseModel, Field, JsonValue

from graph.answers import (
    OUR_FAULTS,
    Explanation,
    Question,
    ReasonerError,
    SuggestedPlan,
    Tools,
    UnexpectedError,
)
from graph.context import Context, brief
from graph.prompts import effect_of, predicted_slots, proposal_slots
from graph.report import Incident, Report
from graph.rules import Rules
from graph.state import plain
from graph.toolbox import QUESTION_TOOLS, Tool, Toolbox
from tools.errors import AsapError, InputError
from tools.recommend.words import fill, objections, short
from tools.scenario import Scenario

MAX_QUESTION = 2000
MAX_CALLS = 8
MAX_FIGURES = 40
MAX_DEVICES = 2048
NODE = "ask"
"""Where the incidents of an answer happened; it is not a node of the graph."""
_FIELD = re.compile(
    r"\b(?P<name>tp|pp|vpp|cp|ep|etp|zero(?:[ _-]?stage)?|micro[ _-]?batch(?:[ _-]?size)?|recompute"
    r"|dp[ _-]?shard)"
    r"\s*(?:=|of|is|at|to)?\s*(?P<value>\d+|none|selective|full)\b",
    re.I,
)
_DEVICES = re.compile(r"\b(\d+)\s*(?:devices|gpus|accelerators|chips|cards)\b", re.I)
_LIMITS = re.compile(r"\b(?:bottleneck|limit\w*|slow|cause|why this|what takes)\b", re.I)
_SURE = re.compile(r"\b(?:sure|certain|confiden\w*|interval|trust|error)\b", re.I)
KNOWN = (
    'The rules answer: why not a plan ("why not tp 8?"), what if another plan or other devices '
    '("what if pp 4?", "what if 128 devices?"), what limits the job, how sure the prediction is. '
    "A language model answers others."
)


class Call(BaseModel):
    """One use of a tool."""

    tool: str
    arguments: dict[str, JsonValue]
    result: JsonValue
    """Shortened if it is long."""


class Answered(BaseModel):
    """An answer, who wrote it, and the tools it rests on."""

    question: str
    answer: str
    by: str
    tools: list[str] = Field(default_factory=list)
    trail: list[Call] = Field(default_factory=list)
    incidents: list[Incident] = Field(default_factory=list)


@dataclass
class _Trail:
    """The tools that were used for an answer, in order, and what went wrong."""

    turn: AbstractContextManager[object]
    calls: list[Call] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)

    def call(self, tool: Tool, **arguments: object) -> Any:  # noqa: ANN401 - JSON of whatever a tool returns
        try:
            with self.turn:
                result = plain(tool(**arguments))
        except OUR_FAULTS as error:
            unexpected = UnexpectedError(error, tool.__name__)
            self.report(unexpected, f"{tool.__name__}: {unexpected}")
            raise unexpected from error
        stated = {
            name: value.model_dump(mode="json", exclude_none=True)
            if isinstance(value, BaseModel)
            else plain(value)
            for name, value in arguments.items()
        }
        self.calls.append(Call(tool=tool.__name__, arguments=stated, result=brief(result)))
        return result

    def answered(self, question: str, answer: str, by: str) -> Answered:
        tools = [call.tool for call in self.calls]
        return Answered(
            question=question, answer=answer, by=by, tools=tools, trail=self.calls, incidents=self.incidents
        )

    def report(self, error: ReasonerError, says: str) -> None:
        self.incidents.append(
            Incident(node=NODE, kind=error.kind, says=says, error=error.error, place=error.place)
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

    `turn` is held while something is computed, and not while a model thinks.
    """
    turn = turn or nullcontext()
    text = question.strip()
    if not 0 < len(text) <= MAX_QUESTION:
        raise InputError("question", question[:60], f"allowed: a text of 1 to {MAX_QUESTION} characters")
    chosen = report.proposals[(report.chosen or 1) - 1].plan
    box = Toolbox(context, scenario, chosen, tenant)
    with turn:
        by_rules = answer_by_rules(text, report, box)
    if isinstance(context.reasoner, Rules):
        return by_rules
    trail, slots = _Trail(turn), _slots(report)
    payload = plain(
        {"question": text, "digest": _digest(report), "slots": slots, "by_rules": by_rules.answer}
    )
    tools = _recorded(box, trail, slots)
    try:
        reply = context.reasoner.ask(Question("answer_question", payload, Explanation, tools, MAX_CALLS))
    except ReasonerError as error:
        trail.report(error, f"{error}; the rules answered instead")
        return by_rules.model_copy(update={"incidents": trail.incidents})
    refused = objections(reply.answer.text, slots)
    if refused:
        says = f"the model's text was refused: {refused[0]}; the rules answered instead"
        incidents = [*trail.incidents, Incident(node=NODE, kind="text refused", says=says)]
        return by_rules.model_copy(update={"incidents": incidents})
    return trail.answered(text, fill(reply.answer.text, slots), reply.by)


def answer_by_rules(question: str, report: Report, box: Toolbox) -> Answered:
    """By what the question names: a plan, a number of devices, the limit, the certainty."""
    trail = _Trail(nullcontext())
    return trail.answered(question, _answer_by_rules(question, report, box, trail), Rules.name)


def _answer_by_rules(question: str, report: Report, box: Toolbox, trail: _Trail) -> str:
    try:
        fields, devices = plan_fields(question), _DEVICES.search(question)
        if devices:
            return _on_devices(int(devices.group(1)), box, trail)
        if fields:
            return _about_plan(fields, box, trail)
    except AsapError as error:
        return f"That is not possible: {error}"
    first = report.proposals[(report.chosen or 1) - 1]
    if _SURE.search(question):
        return f"{short(first.plan)} is {effect_of(first)}. {' '.join(map(_sentence, first.risks))}"
    if _LIMITS.search(question):
        cause = report.hypotheses[0] if report.hypotheses else None
        return f"{_sentence(cause.says)} The lever: {cause.lever}." if cause else report.diagnosis.bottleneck
    return KNOWN


def plan_fields(question: str) -> dict[str, JsonValue]:
    """The fields of a plan that a question names."""
    fields: dict[str, JsonValue] = {}
    for match in _FIELD.finditer(question):
        name, value = re.sub(r"[ -]", "_", match["name"].lower()), match["value"].lower()
        name = {"zero": "zero_stage", "micro_batch": "micro_batch_size"}.get(name, name)
        fields[name] = int(value) if value.isdigit() else value
    return fields


def _about_plan(fields: Mapping[str, JsonValue], box: Toolbox, trail: _Trail) -> str:
    try:
        plan = SuggestedPlan.model_validate(fields)
    except ValueError:
        raise InputError("plan", dict(fields), "allowed: values of plan fields, such as tp 4") from None
    why = trail.call(box.explain_plan, plan=plan)
    text = f"{why['summary']}: {why['why']}."
    if why.get("step_time_s"):
        text += (
            f" Predicted {why['step_time_s']:.3g} s per step, {why['peak_memory_gib']:.1f} GiB per device."
        )
    return text


def _on_devices(devices: int, box: Toolbox, trail: _Trail) -> str:
    """The best plan there, found by a search of its own."""
    if not 0 < devices <= MAX_DEVICES:
        raise InputError("devices", devices, f"allowed: 1 to {MAX_DEVICES}")
    cluster = box.scenario.cluster.model_copy(update={"num_devices": devices})
    changed = {"cluster": cluster, "plan": None, "traces": None}
    other = Toolbox(box.context, box.scenario.model_copy(update=changed), None, box.tenant)
    best = trail.call(other.predict_plan)
    trail.calls[-1].arguments["num_devices"] = devices
    return (
        f"With {devices} devices the best plan is {best['plan']}: {best['step_time_s']:.3g} s per step, "
        f"{best['tokens_per_s_per_device']:.0f} tokens per second per device."
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _digest(report: Report) -> dict[str, JsonValue]:
    wanted = {"verdict", "facts", "hypotheses", "questions", "chosen", "rejected", "considered", "decisions"}
    digest: dict[str, JsonValue] = report.model_dump(mode="json", include=wanted)
    digest["proposals"] = [
        {
            "rank": proposal.rank,
            "role": proposal.role,
            "plan": short(proposal.plan),
            "evidence": plain(proposal.evidence),
        }
        for proposal in report.proposals
    ]
    return digest


def _slots(report: Report) -> dict[str, str]:
    slots: dict[str, str] = {"bottleneck": report.diagnosis.bottleneck}
    if report.hypotheses:
        slots |= {"cause": report.hypotheses[0].says, "lever": report.hypotheses[0].lever}
    if report.baseline:
        slots |= predicted_slots("today", report.baseline)
    for proposal in report.proposals:
        slots |= proposal_slots(f"p{proposal.rank}", proposal, report.baseline)
    return slots


def _recorded(box: Toolbox, trail: _Trail, slots: dict[str, str]) -> Tools:
    """The tools, each result of which becomes slots `t1.name`, `t2.name` and so on."""

    def recorded(tool: Tool) -> Tool:
        @wraps(tool)
        def call(**arguments: object) -> object:
            result = trail.call(tool, **arguments)
            figures = dict(_figures(result, f"t{len(trail.calls)}"))
            slots.update(dict(list(figures.items())[:MAX_FIGURES]))
            return {"slots": sorted(figures)[:MAX_FIGURES], "result": result}

        return call

    return {name: recorded(tool) for name, tool in box.named(QUESTION_TOOLS).items()}


def _figures(value: JsonValue, name: str) -> list[tuple[str, str]]:
    """Every number of a result by its path, formatted with the unit in its name."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return []
    if isinstance(value, int | float):
        return [(re.sub(r"[^a-z0-9_.]", "_", name.lower()), _format_figure(name, value))]
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    return [figure for key, part in parts for figure in _figures(part, f"{name}.{key}")]


def _format_figure(name: str, value: float) -> str:
    units = {"_s": " s", "_gib": " GiB", "_us": " µs", "ratio": "x", "speedup": "x", "ratio_to_first": "x"}
    unit = next((unit for suffix, unit in units.items() if name.endswith(suffix)), "")
    if name.endswith(("share", "mfu", "difference")):
        return f"{value:.1%}"
    return f"{value:,}{unit}" if isinstance(value, int) else f"{value:.3g}{unit}"
