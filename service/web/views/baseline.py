"""The plan that others are compared with: today's or, where none was stated, the framework's default."""

from collections.abc import Mapping
from typing import Any

from tools.recommend.workload import Workload
from tools.scenario import Plan

TODAY = "today"
"""How addresses call it, whichever it is."""
NO_REPORT: Mapping[str, Any] = {"trials": []}
"""Of a view that no session made."""


def find_baseline(workload: Workload, report: Mapping[str, Any]) -> Plan | None:
    known = report.get("baseline_plan")
    return Plan.model_validate(known["plan"]) if known else workload.scenario.plan
