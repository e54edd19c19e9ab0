"""A figure that a page of a session wants, and what it may be made of."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from service.api.parts import Parts
from service.errors import NotFoundError
from service.report.view import View, read_workload
from service.web.space import Searched
from service.web.trace_data import get_analysis
from service.web.views.baseline import TODAY, find_baseline
from service.web.views.session import SessionView
from tools.recommend.workload import Workload
from tools.scenario import Plan, Scenario

Data = Mapping[str, Any]


@dataclass(frozen=True)
class Asked:
    parts: Parts
    searched: Searched
    shown: SessionView
    view: View
    plan: str
    """`today`, or the rank of a proposal."""
    by: str

    @property
    def workload(self) -> Workload:
        return read_workload(self.shown.row.request or {}, self.view.report)

    @property
    def chosen(self) -> Plan:
        baseline = find_baseline(self.workload, self.view.report) if self.plan == TODAY else None
        if baseline:
            return baseline
        plans = {str(one["rank"]): one["plan"] for one in self.view.report["proposals"]}
        if self.plan not in plans:
            raise NotFoundError("plan", self.plan)
        return Plan.model_validate(plans[self.plan])

    @property
    def scenario(self) -> Scenario:
        return self.workload.with_plan(self.chosen)

    @property
    def analysis(self) -> Data:
        return get_analysis(self.parts, self.shown.row)
