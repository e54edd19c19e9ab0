"""The session state: written to a checkpoint after every node."""

import operator
from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

Data = dict[str, Any]


def added(old: Mapping[str, float], new: Mapping[str, float]) -> dict[str, float]:
    """The reducer of counters."""
    return {name: old.get(name, 0) + new.get(name, 0) for name in {*old, *new}}


class State(TypedDict, total=False):
    """Nodes meet here and nowhere else. Lists and counters grow; other keys are replaced."""

    session: Data
    """`id`, `tenant`, `started_at` (seconds since 1970), `mode`, `approval`, `template`, `policy`;
    and today's `plan` in full, or in a cold start the framework's own once it is measured."""
    request: Data
    """The caller's scenario, as it came."""
    reading: Data
    """What the engineer's notes say: `accepted` and `refused` statements, the `scenario` that results."""
    analysis: Data
    """`subject` (today's plan or a proposal), its `plan`, `prediction`, `diagnosis`, `facts`, `profile`."""
    knowledge: Data
    """`playbooks` whose conditions hold, and `hits` of the search."""
    found: Data
    """What the search returned, and `considered`: plans from elsewhere with their verdict."""
    verification: Data
    """`checked` numbers, `faults`, and whether everything `holds`."""
    prose: Data
    """`verdict`, `first_step`, `would_change`, a `rationale` for each proposal."""
    decisions: Annotated[list[Data], operator.add]
    """What people decided, oldest first."""
    handled: int
    """How many of the decisions have been acted upon."""
    trials: Annotated[list[Data], operator.add]
    """What was measured, the baseline first: each with its plan, the prediction before, and its outcome."""
    calibration: Data
    """What the trials made of the cost model, as plain data: a resumed session goes on with it."""
    stopping: Data
    """Whether another trial is worth it, in figures and words."""
    incidents: Annotated[list[Data], operator.add]
    """What went wrong and what was done instead."""
    route: Annotated[list[Data], operator.add]
    """Every step the coordinator chose, with its reason."""
    usage: Annotated[dict[str, float], added]
    """Tokens, money, questions answered and given back to the rules, calls of tools, trials."""
    learnt: Data
    """The `case` that a report names, those of `trials`, and how many decisions and trials were `seen`."""
    report: Data
