"""What every agent sees of the blackboard, and the slots that code fills in prose."""

from collections.abc import Sequence

from pydantic import JsonValue

from graph.report import Decision
from graph.state import SessionSearch, State, plain
from tools.cost.predict import Prediction
from tools.recommend.report import Diagnosis, Proposal
from tools.recommend.words import difference, format_same_decimals, largest, short, span

MAX_TURNS = 2
MAX_CONSIDERED = 6
Digest = dict[str, JsonValue]


def digest_of(state: State, agent: str) -> Digest:
    """The whole state in short, with the agent's own last turns."""
    analysis, search = state.get("analysis"), state.get("search")
    turns = [turn for turn in state.get("turns", []) if turn.agent == agent]
    digest: Digest = plain(
        {
            "facts": state.get("facts", []),
            "hypotheses": [
                entry.model_dump(mode="json", exclude={"evidence"}) | {"references": sorted(entry.references)}
                for entry in (analysis.hypotheses if analysis else [])
            ],
            "today": _prediction(analysis.baseline) if analysis and analysis.baseline else None,
            "proposals": [_proposal(entry) for entry in (search.proposals if search else [])],
            "considered": [
                entry.model_dump(mode="json", include={"summary", "accepted", "binding", "why", "origin"})
                for entry in (search.considered[-MAX_CONSIDERED:] if search else [])
            ],
            "worklist": state.get("worklist", []),
            "decisions": [
                entry.model_dump(include={"action", "proposal"}) for entry in state.get("decisions", [])
            ],
            "trials": [
                entry.model_dump(mode="json", include={"role", "summary", "status", "step_time_s", "speedup"})
                for entry in state.get("trials", [])
            ],
            "questions": state.get("questions", []),
            "your_last_turns": turns[-MAX_TURNS:],
        }
    )
    return digest


def _prediction(prediction: Prediction) -> Digest:
    return prediction.model_dump(
        mode="json", include={"step_time_s", "breakdown_s", "peak_memory_gib", "fits"}
    )


def _proposal(proposal: Proposal) -> Digest:
    return {
        "rank": proposal.rank,
        "role": proposal.role,
        "plan": short(proposal.plan),
        "step_time_s": proposal.prediction.step_time_s,
        "speedup": proposal.speedup,
        "peak_memory_gib": proposal.prediction.peak_memory_gib,
        "references": [evidence.ref for evidence in proposal.evidence],
    }


def chosen_rank(decisions: Sequence[Decision], count: int) -> int | None:
    """The approved proposal, else the first; None after a rejection."""
    last = next(
        (decision for decision in reversed(decisions) if decision.action in ("approve", "reject")), None
    )
    if last is None:
        return 1
    return min(last.proposal, count) if last.action == "approve" else None


def decision_in_words(decisions: Sequence[Decision]) -> str | None:
    """What a person has settled; a policy's approvals are no news to anybody."""
    last = next(
        (decision for decision in reversed(decisions) if decision.action in ("approve", "reject")), None
    )
    if last is None or last.by == "policy":
        return None
    who = last.by or "A person"
    if last.action == "approve":
        return f"{who} approved proposal {last.proposal}."
    return f"{who} rejected the proposals: nothing is to be changed."


def slots_of(state: State, search: SessionSearch, diagnosis: Diagnosis) -> dict[str, str]:
    """Every figure, plan and direction that prose may state, as code writes it."""
    analysis, request = state["analysis"], state["request"]
    first = analysis.hypotheses[0] if analysis.hypotheses else None
    slots = {
        "device": request.cluster.device,
        "devices": f"{request.cluster.num_devices} devices",
        "bottleneck": diagnosis.bottleneck,
        "cause": first.says if first else diagnosis.bottleneck,
        "lever": diagnosis.lever or (f"the lever is {first.lever}" if first else ""),
        "searched": f"{search.searched.plans:,} plans",
    }
    if analysis.baseline:
        slots |= predicted_slots("today", analysis.baseline)
    if analysis.profile and analysis.profile.step_time_s:
        slots["measured"] = (
            f"{format_same_decimals(analysis.profile.step_time_s)[0]} s per step in the profile"
        )
    decision = decision_in_words(state.get("decisions", []))
    if decision:
        slots["decision"] = decision
    for proposal in search.proposals:
        slots |= proposal_slots(f"p{proposal.rank}", proposal, analysis.baseline)
    return slots


def predicted_slots(name: str, prediction: Prediction) -> dict[str, str]:
    return {
        f"{name}.step": f"{format_same_decimals(prediction.step_time_s)[0]} s per step",
        f"{name}.interval": f"{span(prediction.step_time_low_s, prediction.step_time_high_s)} s",
        f"{name}.memory": f"{prediction.peak_memory_gib:.1f} GiB per device",
        f"{name}.terms": largest(prediction),
        f"{name}.limit": prediction.bottleneck,
        f"{name}.mfu": f"{prediction.mfu:.1%} MFU",
    }


def proposal_slots(name: str, proposal: Proposal, baseline: Prediction | None) -> dict[str, str]:
    slots = {**predicted_slots(name, proposal.prediction), f"{name}.plan": short(proposal.plan)}
    slots[f"{name}.effect"] = effect_of(proposal)
    slots[f"{name}.changes"] = (
        ", ".join(f"{c.field} {c.from_} to {c.to}" for c in proposal.changes) or "nothing"
    )
    if baseline:
        slots[f"{name}.difference"] = difference(baseline, proposal.prediction)
    if proposal.measured:
        slots[f"{name}.measured"] = (
            f"{format_same_decimals(proposal.measured.step_time_s)[0]} s per step, measured"
        )
    if proposal.speedup is not None:
        slots[f"{name}.speedup"] = slots[f"{name}.effect"]
    return slots


def effect_of(proposal: Proposal) -> str:
    """The direction is code's: how much faster or slower than today, with its interval."""
    if proposal.speedup is None or proposal.speedup_low is None or proposal.speedup_high is None:
        return f"predicted at {format_same_decimals(proposal.prediction.step_time_s)[0]} s per step"
    interval = f"80% interval {proposal.speedup_low:.2f} to {proposal.speedup_high:.2f}"
    if proposal.speedup_low > 1:
        return f"predicted {proposal.speedup:.2f}x as fast as today's plan ({interval})"
    if proposal.speedup_high < 1:
        return f"predicted slower than today's plan, {proposal.speedup:.2f}x its speed ({interval})"
    same = "no different from today's plan beyond the error of a comparison"
    return f"{same}, {proposal.speedup:.2f}x ({interval})"
