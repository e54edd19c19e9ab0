"""A person's or a policy's decision. A node of its own: what precedes an interrupt is repeated on resume."""

from langgraph.types import interrupt
from pydantic import JsonValue

from graph.report import Decision
from graph.request import parse_decision
from graph.services import NodeServices
from graph.state import State, plain
from graph.tuning import budget_of, calibration_data, first_open_rank

POLICY = "policy"


def approve(state: State, services: NodeServices) -> State:
    if state["session"].approval == POLICY:
        decision = _by_policy(state, services)
    else:
        decision = parse_decision(interrupt(_question(state, services)))
    services.log.emit("decided", action=decision.action, by=decision.by, proposal=decision.proposal)
    return services.done(decisions=[decision])


def _question(state: State, services: NodeServices) -> dict[str, JsonValue]:
    """With what a list of sessions shows of each, and what was measured so far; stored as JSON."""
    proposals = [
        entry.model_dump(mode="json", include={"rank", "plan", "speedup", "measured"})
        for entry in state["search"].proposals
    ]
    return {
        "question": "which proposal?",
        "bottleneck": state["analysis"].diagnosis.bottleneck,
        "proposals": proposals,
        "trials": plain([entry.public for entry in state.get("trials", [])]),
        "calibration": calibration_data(services.context, state),
    }


def _by_policy(state: State, services: NodeServices) -> Decision:
    """The search was held to the policy's fields, so that the first proposal keeps to them."""
    trials, policy = state.get("trials", []), state["session"].policy
    fields = ", ".join(policy.fields) if policy and policy.fields is not None else "any field"
    left = budget_of(services.context.limits, trials).left_device_hours
    return Decision(
        id=f"policy-{len(trials)}",
        action="approve",
        proposal=first_open_rank(state["search"].proposals) or 1,
        plan=None,
        by=POLICY,
        comment=f"the policy lets trials change {fields}; {left:.3g} device-hours are left",
    )
