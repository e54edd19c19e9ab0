"""Scores a plan from outside (an agent, a playbook, an engineer) by the same rules as the search's own.

It is refused with the framework's reason, told which fields it lacks, or scored.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tools.cost.predict import Prediction
from tools.errors import InputError
from tools.recommend.choose import MOST, PREFERENCE_WINDOW
from tools.recommend.proposal import proposal
from tools.recommend.why_not import explain, find_changed
from tools.recommend.words import short
from tools.recommend.workload import Workload
from tools.scenario import Plan
from tools.scenario.spec import build, refuse_unknown

Scored = dict[str, Any]


def complete(workload: Workload, start: Plan, fields: Mapping[str, object]) -> Plan:
    """The plan `start` with some fields replaced; the data-parallel degree and what depends on it follow."""
    refuse_unknown(fields, Plan.model_fields, "plan.")
    typed = build(Plan, {**start.model_dump(), **fields}, "plan.")
    plan = find_changed(workload, start, {name: getattr(typed, name) for name in fields})
    if plan is None:
        devices = workload.scenario.cluster.num_devices
        allowed = f"tp * pp * cp must be whole numbers that divide {devices} devices"
        raise InputError("plan", dict(fields), allowed)
    return plan


def score(workload: Workload, plan: Plan, best: Mapping[str, Any]) -> Scored:
    """Accepted with a proposal of its own, or refused with the reason; `best` is the first proposal."""
    said = {"plan": plan.model_dump(), "summary": short(plan), "accepted": False, "proposal": None}
    objection = workload.objection(plan)
    if objection is not None:
        return {**said, "binding": "rule", "why": objection}
    prediction = workload.predict([plan])[0]
    winner = Plan.model_validate(best["plan"])
    verdict = explain(workload, plan, winner, Prediction.model_validate(best["prediction"]), prediction)
    accepted = verdict["binding"] not in ("memory", "constraint")
    own = proposal(workload, MOST, plan, prediction, workload.today()) if accepted else None
    return {**said, **verdict, "accepted": accepted, "proposal": own}


def join(proposals: Sequence[Scored], scored: Sequence[Scored]) -> list[Scored]:
    """The proposals with every accepted suggestion before the first one that it beats; at most three."""
    joined = list(proposals)
    for one in scored:
        if one["accepted"] and all(one["plan"] != other["plan"] for other in joined):
            place = next((i for i, other in enumerate(joined) if _beats(one["proposal"], other)), MOST)
            joined.insert(place, one["proposal"])
    return [{**one, "rank": rank} for rank, one in enumerate(joined[:MOST], start=1)]


def _beats(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """By more than the difference within which experts' preference ordered the proposals."""
    mine, theirs = one["prediction"]["step_time_s"], other["prediction"]["step_time_s"]
    return bool(mine * math.exp(PREFERENCE_WINDOW) < theirs)
