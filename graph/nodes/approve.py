"""A person's decision. In a node of its own: what stands before an interrupt is repeated on resume."""

from langgraph.types import interrupt

from graph.decisions import parse_decision
from graph.desk import Desk
from graph.state import State


def approve(state: State, desk: Desk) -> State:
    asked = [{"rank": one["rank"], "plan": one["plan"]} for one in state["found"]["proposals"]]
    decision = parse_decision(interrupt({"question": "which proposal?", "proposals": asked}))
    desk.journal.tell("decided", action=decision["action"], by=decision["by"], proposal=decision["proposal"])
    return desk.done(decisions=[decision])
