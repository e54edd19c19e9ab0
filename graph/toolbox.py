"""The tools that agents, assistants over MCP and answers to questions share: one workload, plain data out.

Bad input raises InputError, which names the field and what is allowed; callers hand it to the model as text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, JsonValue

from graph.answers import SuggestedPlan
from graph.context import Context
from graph.state import plain
from tools.cost.terms import STEP_TERMS
from tools.errors import InputError
from tools.frameworks import export_plan
from tools.hardware import describe, get_device
from tools.kb.recipes import nearest_recipes
from tools.recommend.optimize import best_plans, workload_of
from tools.recommend.report import PlanFields
from tools.recommend.score import complete
from tools.recommend.why_not import explain_plan, rejected
from tools.recommend.words import difference, short
from tools.recommend.workload import Workload
from tools.scenario import Plan, Scenario
from tools.search.constraints import parse_constraints
from tools.trace.report import TraceReport, analyse_folder

Constraints = Annotated[
    dict[str, JsonValue],
    Field(description='per plan field a value, a list, or {"not": [...], "min": n, "max": n}', max_length=12),
]
Count = Annotated[int, Field(ge=1, le=3)]
Query = Annotated[str, Field(max_length=2000)]
Id = Annotated[str, Field(max_length=100)]
Tool = Callable[..., object]
MAX_ITEMS = 8
ARITHMETIC = ("compute", "recompute", "memory_bound_ops", "optimizer")
MIN_FACTOR, MAX_FACTOR = 0.0, 10.0

ANALYZER_TOOLS = (
    "profile_summary", "profile_rank", "stragglers", "collectives", "top_operations", "host_gaps",
    "step_variation", "predict_plan", "reconcile", "what_if", "find_knowledge",
)  # fmt: skip
PROPOSAL_TOOLS = (
    "search_plans", "predict_plan", "compare_plans", "neighbours", "explain_plan", "sensitivity",
    "find_knowledge", "read_knowledge", "published_recipes", "check_export",
)  # fmt: skip
QUESTION_TOOLS = tuple(dict.fromkeys((*ANALYZER_TOOLS, *PROPOSAL_TOOLS, "hardware")))


class ProfileTools:
    """Questions about one folder of traces."""

    def __init__(self, trace: TraceReport) -> None:
        self._own = trace

    @property
    def _trace(self) -> TraceReport:
        return self._own

    def profile_summary(self) -> object:
        """Summarise the profile: where the time of all ranks goes, and the measured diagnosis."""
        trace = self._trace
        return plain({"ranks": len(trace.ranks), "total": trace.total, "diagnosis": trace.diagnosis})

    def profile_rank(self, rank: int) -> object:
        """Show one rank: its breakdown, its longest operations, its host."""
        wanted = next((traced for traced in self._trace.ranks if traced.rank == rank), None)
        if wanted is None:
            ranks = [traced.rank for traced in self._trace.ranks]
            raise InputError("rank", rank, f"allowed: {ranks[0]} to {ranks[-1]}, as traced")
        return plain(wanted.model_copy(update={"steps": wanted.steps[:MAX_ITEMS], "roofline": []}))

    def stragglers(self) -> object:
        """List the ranks that the others wait for, with what makes them late."""
        return plain(self._trace.stragglers[:MAX_ITEMS])

    def collectives(self, kind: Id = "") -> object:
        """List collectives by kind, group and size: time, waiting, bandwidth reached and of the link."""
        return plain(
            [collective for collective in self._trace.collectives if not kind or collective.kind == kind][
                :MAX_ITEMS
            ]
        )

    def top_operations(self) -> object:
        """List the longest operations of the first rank, and how near to the roofline they run."""
        first = self._trace.ranks[0]
        return plain({"operations": first.top_ops[:MAX_ITEMS], "roofline": first.roofline[:MAX_ITEMS]})

    def host_gaps(self) -> object:
        """Show for each rank how long the device idles, and whether host or other ranks cause it."""
        names = {"rank", "idle_us", "idle_host_us", "idle_waiting_us", "idle_unknown_us", "total_us"}
        return [traced.model_dump(include=names) for traced in self._trace.ranks[:MAX_ITEMS]]

    def step_variation(self) -> object:
        """Show how much the steps of each rank vary."""
        return [
            {"rank": traced.rank, "variation_ratio": traced.step_variation_ratio, "steps": len(traced.steps)}
            for traced in self._trace.ranks[:MAX_ITEMS]
        ]

    def view(self, name: str) -> object:
        """One part by its short name."""
        return getattr(self, VIEWS[name])()


VIEWS = {
    "summary": "profile_summary",
    "stragglers": "stragglers",
    "collectives": "collectives",
    "operations": "top_operations",
    "host": "host_gaps",
    "variation": "step_variation",
}


@dataclass
class Toolbox(ProfileTools):
    """One scenario, the plan that is meant if none is named, and whose knowledge may be read."""

    context: Context
    scenario: Scenario
    start: Plan | None = None
    tenant: str | None = None

    def named(self, names: Sequence[str]) -> dict[str, Tool]:
        return {name: getattr(self, name) for name in names}

    @cached_property
    def workload(self) -> Workload:
        return workload_of(self.scenario, self.context.session_calibration or self.context.calibration)

    @cached_property
    def plan(self) -> Plan:
        """What fields are counted from: the plan given, today's, or the best one."""
        return self.start or self.scenario.plan or best_plans(self.workload, self.context.progress)[0][0]

    def search_plans(self, constraints: Constraints, count: Count = 3) -> object:
        """Search every legal plan under further constraints; the best of different families."""
        merged: dict[str, JsonValue] = {**self.scenario.constraints, **constraints}
        scenario = self.scenario.model_copy(update={"constraints": merged})
        parse_constraints(merged, scenario.plan)
        workload = workload_of(scenario, self.workload.calibration)
        plans, found = best_plans(workload, self.context.progress)
        return {"searched": found.searched, "plans": [self._predicted(plan) for plan in plans[:count]]}

    def predict_plan(self, plan: SuggestedPlan | None = None) -> object:
        """Predict a plan: step time with its interval and all its terms, memory with its parts, MFU."""
        wanted = self._complete(plan)
        prediction = self.workload.predict([wanted])[0]
        return {"plan": short(wanted), **prediction.model_dump(mode="json", exclude={"id"})}

    def compare_plans(
        self, plans: Annotated[list[SuggestedPlan], Field(min_length=2, max_length=4)]
    ) -> object:
        """Compare plans: step times, which terms differ, whether that is beyond the error."""
        wanted = [self._complete(plan_fields) for plan_fields in plans]
        predictions = self.workload.predict(wanted)
        first = predictions[0]
        return [
            {
                **self._predicted(plan),
                "ratio_to_first": prediction.step_time_s / first.step_time_s,
                "is_tie": abs(prediction.step_time_s / first.step_time_s - 1) <= self.workload.pair_error,
                "difference": difference(first, prediction),
            }
            for plan, prediction in zip(wanted, predictions, strict=True)
        ]

    def neighbours(self, plan: SuggestedPlan | None = None) -> object:
        """List the plans one field away, the fastest first, each with what speaks against it."""
        wanted = self._complete(plan)
        return plain(rejected(self.workload, wanted, self.workload.predict([wanted])[0]))

    def explain_plan(self, plan: SuggestedPlan) -> object:
        """Say what speaks against a plan: the rule it breaks, the memory it lacks, or the slower term."""
        explained = explain_plan(self.workload, self._complete(plan), self.plan)
        return plain(explained)

    def sensitivity(self) -> object:
        """Say how the best plan changes with slower links, other device counts and more memory."""
        from tools.recommend.sensitivity import sensitivity

        found = best_plans(self.workload, self.context.progress)[1]
        return [
            {"if": case.if_, "says": case.says, "stays": case.stays}
            for case in sensitivity(self.workload, found)
        ]

    def what_if(self, term: Id, factor: Annotated[float, Field(ge=MIN_FACTOR, le=MAX_FACTOR)]) -> object:
        """Say what the step of the present plan would take if one term of it took `factor` times as long."""
        prediction = self.workload.predict([self.plan])[0]
        if term not in prediction.breakdown_s:
            raise InputError("term", term, f"allowed: {', '.join(prediction.breakdown_s)}")
        changed_s = prediction.step_time_s + (factor - 1) * prediction.breakdown_s[term]
        return {
            "term": STEP_TERMS[term].phrase,
            "step_time_s": prediction.step_time_s,
            "term_s": prediction.breakdown_s[term],
            "step_time_then_s": changed_s,
            "speedup": prediction.step_time_s / changed_s if changed_s > 0 else None,
        }

    def check_export(self, plan: SuggestedPlan, format: Id) -> object:
        """Say whether a framework's configuration can express a plan, or which field it refuses."""
        exported = export_plan(self.workload.with_plan(self._complete(plan)), format)
        return {"format": format, "file": exported.file_name, "notes": list(exported.notes)}

    def find_knowledge(self, query: Query, limit: Annotated[int, Field(ge=1, le=8)] = 4) -> object:
        """Find playbooks (advice with conditions) and measured cases by a description of the situation."""
        hits = self.context.knowledge.search(query, tenant=self.tenant, limit=limit)
        return [
            {"id": f"{hit.entry.kind}:{hit.entry.id}", "title": hit.entry.title, "status": hit.entry.status,
             "warning": hit.warning}
            for hit in hits
        ]  # fmt: skip

    def read_knowledge(self, id: Id) -> object:
        """Read a playbook or case in full, by the id that find_knowledge returned."""
        entry = self.context.knowledge.get(id.rpartition(":")[2], self.tenant)
        return {**entry.json_body(), "id": f"{entry.kind}:{entry.id}", "status": entry.status}

    def published_recipes(self, limit: Annotated[int, Field(ge=1, le=8)] = 3) -> object:
        """Find the plans that vendors tuned, measured and published for workloads most like this one."""
        return [
            {
                "id": f"recipe:{match.recipe.id}",
                "title": match.recipe.title,
                "says": match.recipe.says,
                "same_model": match.is_same_model,
                "same_device": match.is_same_device,
                "source": match.recipe.source.where,
            }
            for match in nearest_recipes(self.scenario, limit, self.context.recipes)
        ]

    def hardware(self, name: Id) -> object:
        """Describe a device of the catalogue: memory, peak rates, links."""
        described = describe(get_device(name))
        return {key: value for key, value in described.items() if key != "sources"}

    def reconcile(self) -> object:
        """Set the measured step beside the predicted one, term by term where the traces tell them apart."""
        total, prediction = self._trace.total, self.workload.predict([self.plan])[0]
        whole = total.total_us or 1.0
        parts = prediction.breakdown_s
        exposed = sum(seconds for term, seconds in parts.items() if term.endswith("_comm_exposed"))
        arithmetic = sum(parts.get(term, 0.0) for term in ARITHMETIC)
        pairs = {
            "compute": (total.compute_us / whole, arithmetic / prediction.step_time_s),
            "exposed_communication": (
                total.exposed_communication_us / whole,
                exposed / prediction.step_time_s,
            ),
            "idle": (
                total.idle_us / whole,
                (parts["pipeline_bubble"] + parts["host_and_other"]) / prediction.step_time_s,
            ),
        }
        return {
            name: {
                "measured_share": measured,
                "predicted_share": predicted,
                "difference": measured - predicted,
            }
            for name, (measured, predicted) in pairs.items()
        }

    @property
    def _trace(self) -> TraceReport:
        return self._read_trace

    @cached_property
    def _read_trace(self) -> TraceReport:
        if not self.scenario.traces:
            raise InputError("traces", None, "this workload has no traces; use predict_plan")
        report = analyse_folder(Path(self.scenario.traces), check=self.context.check).report
        if not report.ranks:
            raise InputError("traces", self.scenario.traces, "no trace of the folder can be read")
        return report

    def _predicted(self, plan: Plan) -> dict[str, Any]:
        prediction = self.workload.predict([plan])[0]
        return {
            "plan": plan.model_dump(include=set(SuggestedPlan.model_fields)),
            "summary": short(plan),
            "step_time_s": prediction.step_time_s,
            "interval_s": [prediction.step_time_low_s, prediction.step_time_high_s],
            "peak_memory_gib": prediction.peak_memory_gib,
            "fits": prediction.fits,
            "bottleneck": prediction.bottleneck,
        }

    def _complete(self, plan: SuggestedPlan | None) -> Plan:
        fields: PlanFields = plan.model_dump(exclude_none=True) if plan else {}
        return complete(self.workload, self.plan, fields) if fields else self.plan
