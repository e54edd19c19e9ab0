"""A person's or a policy's decision. A node of its own: what precedes an interrupt is repeated on resume."""

from langgraph.types import interrupt

from graph.request import parse_decision
from graph.services import NodeServices
from graph.state import Data, State
from graph.tuning import budget_of, first_open_rank, public_trial

POLICY = "policy"
ASKED = ("rank", "plan", "speedup", "measured")


def approve(state: State, services: NodeServices) -> State:
    if state["session"]["approval"] == POLICY:
        decision = _by_policy(state, services)
    else:
        decision = parse_decision(interrupt(_question(state)))
    services.log.emit("decided", action=decision["action"], by=decision["by"], proposal=decision["proposal"])
    return services.done(decisions=[decision])


def _question(state: State) -> Data:
    """With what a list of sessions shows of each, and what was measured so far."""
    return {
        "question": "which proposal?",
        "bottleneck": state["analysis"]["diagnosis"]["bottleneck"],
        "proposals": [{name: one[name] for name in ASKED} for one in state["found"]["proposals"]],
        "trials": [public_trial(one) for one in state.get("trials", [])],
        "calibration": state.get("calibration"),
    }


def _by_policy(state: State, services: NodeServices) -> Data:
    """The search was held to the policy's fields, so that the first proposal keeps to them."""
    trials, policy = state.get("trials", []), state["session"]["policy"] or {}
    fields = ", ".join(policy["fields"]) if "fields" in policy else "any field"
    left = budget_of(services.context.limits, trials).left_device_hours
    comment = f"the policy lets trials change {fields}; {left:.3g} device-hours are left"
    return parse_decision(
        {
            "id": f"policy-{len(trials)}",
            "action": "approve",
            "proposal": first_open_rank(state["found"]["proposals"]) or 1,
            "by": POLICY,
            "comment": comment,
        }
    )
