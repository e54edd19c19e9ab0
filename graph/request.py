"""What a caller may ask for: a scenario, and how far ASAP may go with it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from graph.state import Data, State
from tools.errors import InputError
from tools.recommend.optimize import workload_of
from tools.scenario import parse_scenario

MODES = ("advise", "tune")
APPROVALS = ("none", "person")
OPTIONS = {"mode": MODES, "approval": APPROVALS}


@dataclass(frozen=True)
class Request:
    """Checked once, when it arrives."""

    scenario: Data
    plan: Data | None
    """Today's plan with its defaults filled in."""
    mode: str = "advise"
    approval: str = "none"
    tenant: str | None = None

    def first_state(self, id: str, now: float) -> State:
        session = {
            "id": id,
            "tenant": self.tenant,
            "started_at": now,
            "plan": self.plan,
            "mode": self.mode,
            "approval": self.approval,
        }
        return State(session=session, request=self.scenario)


def parse_request(given: Mapping[str, Any], tenant: str | None = None) -> Request:
    """Raises InputError for the first thing that is wrong."""
    options = {name: given[name] for name in OPTIONS if given.get(name) is not None}
    for name, value in options.items():
        if value not in OPTIONS[name]:
            raise InputError(name, value, f"allowed: {', '.join(OPTIONS[name])}")
    described = {name: part for name, part in given.items() if name not in OPTIONS and part is not None}
    scenario = parse_scenario(described, need_plan=False)
    workload_of(scenario)  # refuses constraints that cannot be
    return Request(described, scenario.plan.model_dump() if scenario.plan else None, tenant=tenant, **options)
