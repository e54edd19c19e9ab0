"""A measured run of the plan that was approved, or of the first proposal where no approval is asked for."""

from graph.desk import Desk
from graph.state import State


def trial(state: State, desk: Desk) -> State:
    proposals, decisions = state["found"]["proposals"], state.get("decisions", [])
    rank = min(decisions[-1]["proposal"], len(proposals)) if decisions else 1
    plan = proposals[rank - 1]["plan"]
    key = f"{state['session']['id']}-{len(state.get('trials', []))}"
    result = desk.call("run_trial", key=key, scenario=state["reading"]["scenario"], plan=plan)
    return desk.done(trials=[{**result, "key": key, "rank": rank, "plan": plan}])
