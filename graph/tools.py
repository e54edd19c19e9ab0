"""The tools that agents, assistants over MCP and answers to questions share: one workload, plain data out.

Bad input raises InputError, which names the field and what is allowed; callers hand it to the model as text.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

from pydantic import Field, JsonValue

from graph.answers import SuggestedPlan
from graph.context import Context
from graph.events import plain
from tools.errors import InputError
from tools.frameworks import export_plan
from tools.hardware import describe, get_device
from tools.kb.recipes import nearest_recipes
from tools.physics.terms import STEP_TERMS
from tools.recommend.optimize import best_plans, workload_of
from tools.recommend.report import PlanFields, RejectedPlan
from tools.recommend.score import complete
from tools.recommend.why_not import explain_plan, rejected
from tools.recommend.words import difference, short
from tools.recommend.workload import Workload
from tools.scenario import Plan, Scenario
from tools.scenario.fields import build
from tools.scenario.levers import framework_levers
from tools.scenario.spec import TrainingSpec
from tools.search.constraints import parse_constraints
from tools.trace.report import TraceReport, analyse_folder

PlanLimits = Annotated[
    dict[str, JsonValue],
    Field(description='per plan field a value, a list, or {"not": [...], "min": n, "max": n}', max_length=12),
]
Switches = Annotated[dict[str, bool | str], Field(max_length=12, description="as in a proposal's settings")]
NameText = Annotated[str, Field(max_length=100)]
KnowledgeQuery = Annotated[str, Field(max_length=2000)]
FewHits = Annotated[int, Field(ge=1, le=8)]
FewPlans = Annotated[int, Field(ge=1, le=3)]
Tool = Callable[..., object]
MAX_ITEMS = 8
ARITHMETIC = ("compute", "recompute", "memory_bound_ops", "optimizer")

ANALYZER_TOOLS = (
    "profile_summary", "profile_rank", "stragglers", "collectives", "top_operations", "host_gaps",
    "step_variation", "predict_plan", "reconcile", "what_if", "find_knowledge",
)  # fmt: skip
TRACE_TOOLS = frozenset(ANALYZER_TOOLS[:7]) | {"reconcile"}
"""These answer from traces alone."""
PROPOSAL_TOOLS = (
    "search_plans", "predict_plan", "compare_plans", "neighbours", "explain_plan", "find_knowledge",
    "read_knowledge",
)  # fmt: skip
QUESTION_TOOLS = tuple(
    dict.fromkeys(
        (*ANALYZER_TOOLS, *PROPOSAL_TOOLS, "sensitivity", "published_recipes", "check_export", "hardware")
    )
)
VIEWS = {
    "summary": "profile_summary",
    "stragglers": "stragglers",
    "collectives": "collectives",
    "operations": "top_operations",
    "host": "host_gaps",
    "variation": "step_variation",
}


class ProfileTools:
    """Questions about one folder of traces."""

    def __init__(self, trace: TraceReport) -> None:
        self.trace = trace

    def profile_summary(self) -> object:
        """Summarise the profile: where the time of all ranks goes, and the measured diagnosis."""
        trace = self.trace
        return plain({"ranks": len(trace.ranks), "total": trace.total, "diagnosis": trace.diagnosis})

    def profile_rank(self, rank: int) -> object:
        """Show one rank: its breakdown, its longest operations, its host."""
        wanted = next((traced for traced in self.trace.ranks if traced.rank == rank), None)
        if wanted is None:
            ranks = [traced.rank for traced in self.trace.ranks]
            raise InputError("rank", rank, f"allowed: {ranks[0]} to {ranks[-1]}, as traced")
        return plain(wanted.model_copy(update={"steps": wanted.steps[:MAX_ITEMS], "roofline": []}))

    def stragglers(self) -> object:
        """List the ranks that the others wait for, with what makes them late."""
        return plain(self.trace.stragglers[:MAX_ITEMS])

    def collectives(self, kind: NameText = "") -> object:
        """List collectives by kind, group and size: time, waiting, bandwidth reached and of the link."""
        wanted = [entry for entry in self.trace.collectives if not kind or entry.kind == kind]
        return plain(wanted[:MAX_ITEMS])

    def top_operations(self) -> object:
        """List the longest operations of the first rank, and how near to the roofline they run."""
        first = self.trace.ranks[0]
        return plain({"operations": first.top_ops[:MAX_ITEMS], "roofline": first.roofline[:MAX_ITEMS]})

    def host_gaps(self) -> object:
        """Show for each rank how long the device idles, and whether host or other ranks cause it."""
        names = {"rank", "idle_us", "idle_host_us", "idle_waiting_us", "idle_unknown_us", "total_us"}
        return [traced.model_dump(include=names) for traced in self.trace.ranks[:MAX_ITEMS]]

    def step_variation(self) -> object:
        """Show how much the steps of each rank vary."""
        return [
            {"rank": traced.rank, "variation_ratio": traced.step_variation_ratio, "steps": len(traced.steps)}
            for traced in self.trace.ranks[:MAX_ITEMS]
        ]

    def view(self, name: str) -> object:
        """One part by its short name."""
        return getattr(self, VIEWS[name])()


@dataclass
class Toolbox(ProfileTools):
    """One scenario, the plan that is meant if none is named, and whose knowledge may be read."""

    context: Context
    scenario: Scenario
    start: Plan | None = None
    tenant: str | None = None

    def named(self, names: Sequence[str]) -> dict[str, Tool]:
        """Those that can answer here."""
        able = [name for name in names if self.scenario.traces or name not in TRACE_TOOLS]
        return {name: getattr(self, name) for name in able}

    @cached_property
    def workload(self) -> Workload:
        return self.context.workload(self.scenario)

    @cached_property
    def plan(self) -> Plan:
        """What fields are counted from: the plan given, today's, or the best one."""
        return self.start or self.scenario.plan or best_plans(self.workload, self.context.progress)[0][0]

    def search_plans(self, constraints: PlanLimits, count: FewPlans = 3) -> object:
        """Search every legal plan under further constraints; the best of different families."""
        merged: dict[str, JsonValue] = {**self.scenario.constraints, **constraints}
        scenario = self.scenario.model_copy(update={"constraints": merged})
        parse_constraints(merged, scenario.plan)
        workload = workload_of(scenario, self.workload.calibration)
        plans, found = best_plans(workload, self.context.progress)
        return {"searched": found.searched, "plans": [self._predicted(plan) for plan in plans[:count]]}

    def predict_plan(self, plan: SuggestedPlan | None = None, settings: Switches | None = None) -> object:
        """Predict a plan: step time with its interval and all its terms, memory with its parts, MFU.

        `settings` are switches of the framework, as a proposal has them; today's without."""
        wanted = self.complete(plan)
        prediction = self.switched(settings).predict([wanted])[0]
        return {"plan": short(wanted), **prediction.model_dump(mode="json", exclude={"id"})}

    def switched(self, settings: Mapping[str, bool | str] | None) -> Workload:
        training = self.scenario.training
        allowed = sorted({lever.setting for lever in framework_levers(training.framework)})
        for name in settings or {}:
            if name not in allowed:
                raise InputError(f"settings.{name}", (settings or {})[name], f"allowed: {', '.join(allowed)}")
        build(TrainingSpec, {**training.model_dump(), **(settings or {})}, "settings.")
        return self.workload.with_settings(settings or {})

    def compare_plans(
        self, plans: Annotated[list[SuggestedPlan], Field(min_length=2, max_length=4)]
    ) -> object:
        """Compare plans: step times, which terms differ, whether that is beyond the error."""
        wanted = [self.complete(fields) for fields in plans]
        first, compared = self.workload.predict(wanted)[0], []
        for plan, prediction in zip(wanted, self.workload.predict(wanted), strict=True):
            ratio = prediction.step_time_s / first.step_time_s
            is_tie = abs(ratio - 1) <= self.workload.pair_error
            told = {"ratio_to_first": ratio, "is_tie": is_tie, "difference": difference(first, prediction)}
            compared.append({**self._predicted(plan), **told})
        return compared

    def neighbours(self, plan: SuggestedPlan | None = None) -> object:
        """List the plans one field away, the fastest first, each with what speaks against it."""
        wanted = self.complete(plan)
        return plain(rejected(self.workload, wanted, self.workload.predict([wanted])[0]))

    def explain_plan(self, plan: SuggestedPlan) -> object:
        """Say what speaks against a plan: the rule it breaks, the memory it lacks, or the slower term."""
        return plain(self.explained(plan))

    def explained(self, plan: SuggestedPlan) -> RejectedPlan:
        return explain_plan(self.workload, self.complete(plan), self.plan)

    def sensitivity(self) -> object:
        """Say how the best plan changes with slower links, other device counts and more memory."""
        from tools.recommend.sensitivity import sensitivity

        found = best_plans(self.workload, self.context.progress)[1]
        return [
            {"if": case.if_, "says": case.summary, "stays": case.stays}
            for case in sensitivity(self.workload, found)
        ]

    def what_if(self, term: NameText, factor: Annotated[float, Field(ge=0, le=10)]) -> object:
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

    def check_export(self, plan: SuggestedPlan, format: NameText) -> object:
        """Say whether a framework's configuration can express a plan, or which field it refuses."""
        exported = export_plan(self.workload.with_plan(self.complete(plan)), format)
        return {"format": format, "file": exported.file_name, "notes": list(exported.notes)}

    def find_knowledge(self, query: KnowledgeQuery, limit: FewHits = 4) -> object:
        """Find playbooks (advice with conditions) and measured cases by a description of the situation."""
        hits = self.context.knowledge.search(query, tenant=self.tenant, limit=limit)
        return [
            {"id": f"{hit.entry.kind}:{hit.entry.id}", "title": hit.entry.title, "status": hit.entry.status,
             "warning": hit.warning}
            for hit in hits
        ]  # fmt: skip

    def read_knowledge(self, id: NameText) -> object:
        """Read a playbook or case in full, by the id that find_knowledge returned."""
        entry = self.context.knowledge.get(id.rpartition(":")[2], self.tenant)
        return {**entry.json_body(), "id": f"{entry.kind}:{entry.id}", "status": entry.status}

    def published_recipes(self, limit: FewHits = 3) -> object:
        """Find the plans that vendors tuned, measured and published for workloads most like this one."""
        return [
            {
                "id": f"recipe:{match.recipe.id}",
                "title": match.recipe.title,
                "says": match.recipe.summary,
                "same_model": match.is_same_model,
                "same_device": match.is_same_device,
                "source": match.recipe.source.where,
            }
            for match in nearest_recipes(self.scenario, limit, self.context.recipes)
        ]

    def hardware(self, name: NameText) -> object:
        """Describe a device of the catalogue: memory, peak rates, links."""
        described = describe(get_device(name))
        return {key: value for key, value in described.items() if key != "sources"}

    def reconcile(self) -> object:
        """Set the measured step beside the predicted one, term by term where the traces tell them apart."""
        total, prediction = self.trace.total, self.workload.predict([self.plan])[0]
        whole, parts = total.total_us or 1.0, prediction.breakdown_s
        pairs = {
            "compute": (total.compute_us, sum(parts.get(term, 0.0) for term in ARITHMETIC)),
            "exposed_communication": (
                total.exposed_communication_us,
                sum(seconds for term, seconds in parts.items() if term.endswith("_comm_exposed")),
            ),
            "idle": (total.idle_us, parts["pipeline_bubble"] + parts["host_and_other"]),
        }
        shares = {
            name: (measured_us / whole, predicted_s / prediction.step_time_s)
            for name, (measured_us, predicted_s) in pairs.items()
        }
        return {
            name: {
                "measured_share": measured,
                "predicted_share": predicted,
                "difference": measured - predicted,
            }
            for name, (measured, predicted) in shares.items()
        }

    @cached_property
    def trace(self) -> TraceReport:  # type: ignore[override]
        """Read when it is first asked about."""
        if not self.scenario.traces:
            raise InputError("traces", None, "this workload has no traces; use predict_plan")
        report = analyse_folder(Path(self.scenario.traces), check=self.context.check).report
        if not report.ranks:
            raise InputError("traces", self.scenario.traces, "no trace of the folder can be read")
        return report

    def _predicted(self, plan: Plan) -> dict[str, object]:
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

    def complete(self, plan: SuggestedPlan | None) -> Plan:
        fields: PlanFields = plan.model_dump(exclude_none=True) if plan else {}
        return complete(self.workload, self.plan, fields) if fields else self.plan
