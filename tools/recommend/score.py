"""Scores a plan from outside (an agent, a playbook, an engineer) by the same rules as the search's own.

It is refused with the framework's reason, or its missing fields are filled in and it is scored.
"""

import math
from collections.abc import Mapping, Sequence

from tools.errors import InputError
from tools.recommend.choose import MAX_PROPOSALS, PREFERENCE_WINDOW
from tools.recommend.proposal import proposal
from tools.recommend.report import Proposal, ScoredPlan
from tools.recommend.why_not import explain, find_changed
from tools.recommend.words import short
from tools.recommend.workload import Workload
from tools.scenario import Plan
from tools.scenario.fields import build, refuse_unknown


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


def score(workload: Workload, plan: Plan, best: Proposal) -> ScoredPlan:
    """Accepted with a proposal of its own, or refused with the reason; `best` is the first proposal."""
    objection = workload.objection(plan)
    if objection is not None:
        return ScoredPlan(plan=plan, summary=short(plan), accepted=False, binding="rule", why=objection)
    prediction = workload.predict([plan])[0]
    verdict = explain(workload, plan, best.plan, best.prediction, prediction)
    accepted = verdict.binding not in ("memory", "constraint")
    own = proposal(workload, MAX_PROPOSALS, plan, prediction, workload.today()) if accepted else None
    return ScoredPlan(
        plan=plan,
        summary=verdict.summary,
        accepted=accepted,
        binding=verdict.binding,
        why=verdict.why,
        step_time_s=verdict.step_time_s,
        step_time_ratio=verdict.step_time_ratio,
        peak_memory_gib=verdict.peak_memory_gib,
        proposal=own,
    )


def join(proposals: Sequence[Proposal], scored: Sequence[ScoredPlan]) -> list[Proposal]:
    """The proposals with every accepted suggestion before the first one that it beats; at most three."""
    joined = list(proposals)
    for plan in scored:
        own = plan.proposal
        if own is None or any(own.plan == other.plan for other in joined):
            continue
        place = next((i for i, other in enumerate(joined) if _beats(own, other)), MAX_PROPOSALS)
        joined.insert(place, own)
    return ranked(joined[:MAX_PROPOSALS])


def ranked(proposals: Sequence[Proposal]) -> list[Proposal]:
    """The proposals with their ranks in this order."""
    return [proposal.model_copy(update={"rank": rank}) for rank, proposal in enumerate(proposals, start=1)]


def _beats(proposal: Proposal, other: Proposal) -> bool:
    """By more than the difference within which experts' preference ordered the proposals."""
    return proposal.prediction.step_time_s * math.exp(PREFERENCE_WINDOW) < other.prediction.step_time_s
