"""The same model without ASAP: the task as a person would put it, and what is published about such decisions.

One request a task, no tools, no prediction. `documents` in agents_alone.toml is
a digest of public pages, in our words.
"""

import json
import tomllib
from pathlib import Path
from typing import Any

from pydantic import Field, JsonValue

from benchmarks.agents_answers import Mailbox
from benchmarks.agents_tasks import Judgement, Task, cause_names, trace_table
from graph.answers import Answer, SuggestedPlan, read_answer
from graph.prompts import TASKS
from tools.recommend.hypotheses import HypothesisCause

TOLD: dict[str, str] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))


class AlonePlans(Answer):
    plans: list[SuggestedPlan]
    why: str = ""


class AloneCause(Answer):
    cause: HypothesisCause
    ranks: list[int] = Field(default_factory=list)
    why: str = ""


class AloneStatement(Answer):
    quote: str = ""
    field: str
    operator: str
    value: Any
    unit: str | None = None


class AloneNotes(Answer):
    statements: list[AloneStatement]


def ask_alone(mailbox: Mailbox, task: Task) -> tuple[Judgement, int]:
    """The judged answer and its tokens, by their length. Raises Fault without an answer."""
    shown = {name: part for name, part in task.raw.items() if name != "traces"}
    if task.kind == "plan":
        how, parts = TOLD["plan"], [TOLD["documents"]]
    elif task.kind == "cause":
        assert task.folder is not None
        how, parts = TOLD["cause"] % ", ".join(cause_names()), [trace_table(task.folder)]
    else:
        how, parts = f"{TASKS['read_notes']}\n{TOLD['notes']}", []
    system = TOLD["system"]
    text = "\n\n".join([how, *parts, json.dumps(shown)])
    request = {"messages": [{"role": "system", "content": system}, {"role": "user", "content": text}]}
    message = mailbox.ask("alone", task.id, task.kind, 0, [system, text], request)
    tokens = (len(system) + len(text) + len(message.content)) // 4
    return _judged(task, message.content), tokens


def _judged(task: Task, content: str) -> Judgement:
    try:
        if task.kind == "plan":
            plans = read_answer(content, AlonePlans).plans
            return task.judge_plans([_whole(task, plan.model_dump(exclude_none=True)) for plan in plans])
        if task.kind == "cause":
            return task.judge_cause(read_answer(content, AloneCause).cause)
        return _judge_statements(task, read_answer(content, AloneNotes))
    except ValueError as error:
        return Judgement(1.0, f"no answer: {error}")


def _whole(task: Task, fields: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """With what the sweep held fixed; dp follows."""
    fixed = {
        name: value for name, value in task.raw["constraints"].items() if not isinstance(value, list | dict)
    }
    plan: dict[str, JsonValue] = {**fixed, **fields}
    ranks = 1
    for name in ("tp", "pp", "cp"):
        ranks *= int(str(plan.setdefault(name, 1)))
    plan["dp"] = dp = task.raw["cluster"]["num_devices"] // ranks
    plan["dp_shard"] = dp if plan.get("zero_stage") else 1
    return plan


def _judge_statements(task: Task, answer: AloneNotes) -> Judgement:
    constraints: dict[str, JsonValue] = {}
    others: dict[str, JsonValue] = {}
    for stated in answer.statements:
        value = stated.value
        if stated.field.endswith("_per_device") or stated.field in (
            "memory_gib", "oversubscription", "nvlink_domain_size", "measured_step_time_s",
        ):  # fmt: skip
            others[stated.field] = value
        elif stated.field == "max_memory_fraction":
            constraints[stated.field] = value
        elif stated.operator == "keep":
            constraints[stated.field] = task.raw["plan"][stated.field]
        elif stated.operator in ("<=", ">="):
            constraints[stated.field] = {"max" if stated.operator == "<=" else "min": value}
        elif stated.operator == "not":
            constraints[stated.field] = {"not": value if isinstance(value, list) else [value]}
        else:
            constraints[stated.field] = value
    return task.judge_notes(constraints, others)
