"""Plans that people brought while a session waits for them: what scoring each one said."""

from collections.abc import Sequence
from dataclasses import dataclass

from graph.decisions import PLAN_ACTIONS
from service.report.text import seconds
from service.store.rows import Data, EventRow

SCORING = "score_plan"


@dataclass(frozen=True)
class Brought:
    by: str
    summary: str
    says: str


def brought_by_people(events: Sequence[EventRow]) -> list[Brought]:
    """In order. A plan is scored right after the decision that brought it, before the session waits again."""
    found, by = [], ""
    for event in events:
        told = event.content
        if event.kind == "decided":
            by = str(told.get("by") or "somebody") if told.get("action") in PLAN_ACTIONS else ""
        elif event.kind == "state":
            by = ""
        elif by and event.kind == "tool" and told.get("tool") == SCORING:
            found.append(_scored(by, told.get("result") or {}))
    return found


def _scored(by: str, result: Data) -> Brought:
    summary, ratio, step_s = (
        result.get("summary", "a plan"),
        result.get("step_time_ratio"),
        result.get("step_time_s"),
    )
    if not result.get("accepted") or not isinstance(ratio, float) or not isinstance(step_s, float):
        return Brought(by, str(summary), str(result.get("why") or "not scored"))
    return Brought(by, str(summary), f"{seconds(step_s)} a step, {ratio - 1:+.1%} against proposal 1's")
