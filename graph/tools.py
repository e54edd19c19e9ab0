"""The functions of `tools/` as the agents call them. No arithmetic here."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from graph.context import Context
from graph.state import Data
from tools.cost.calibration import shipped_calibration
from tools.cost.memory import GIB
from tools.cost.predict import Prediction
from tools.errors import InfeasibleError, InputError
from tools.kb import matching
from tools.recommend import situation as moves
from tools.recommend.diagnosis import competing, read_profile, with_lever
from tools.recommend.notes import apply_notes
from tools.recommend.optimize import analyse, propose, workload_of
from tools.recommend.proposal import proposal, recheck
from tools.recommend.prose_check import checked, figures_in
from tools.recommend.report import Diagnosis, Playbook, Proposal, ScoredPlan
from tools.recommend.score import complete, join, score
from tools.recommend.situation import situation
from tools.recommend.words import short
from tools.recommend.workload import Workload
from tools.scenario import Plan, parse_scenario
from tools.trace.report import Profile
from tools.trials.gate import compare
from tools.trials.order import MeasuredPlan
from tools.trials.steering import default_plan, is_settled, steered, with_recompute
from tools.trials.stopping import Budget, Judgement, judge, surprise_of

PREDICTED = ("step_time_s", "step_time_low_s", "step_time_high_s", "peak_memory_gib")
FROM_ELSEWHERE = {"origin", "reason", "by_person"}
FAILED_ALIKE = 2
"""So many failures, and nothing measured, are the installation's fault and not the plans'."""


def first_plan(context: Context, scenario: Data, plan: Data | None) -> Data:
    """What is measured first: today's plan, or the one that the framework would take unasked."""
    workload = workload_in(context, scenario)
    chosen = default_plan(workload) if plan is None else Plan.model_validate(plan)
    return with_recompute(workload, chosen).model_dump()


def predict_plan(context: Context, scenario: Data, plan: Data) -> Data:
    """What the model says now, to be held against what will be measured."""
    known = Plan.model_validate(plan)
    prediction = workload_in(context, scenario).predict([known])[0]
    return {"summary": short(known), **{name: getattr(prediction, name) for name in PREDICTED}}


def compare_trials(context: Context, baseline: Data, trial: Data) -> Data:
    """The fair-comparison gate: what was not the same, with both values, or how much faster the trial is."""
    return compare(baseline, trial)


def calibrate_model(context: Context, scenario: Data, trials: Sequence[Data]) -> Data:
    """The cost model as all measured trials make it, beginning with the installation's own."""
    from tools.trials.calibrate import calibrate

    measured = [
        MeasuredPlan(Plan.model_validate(one["plan"]), one["step_time_s"], one["noise"], one["terms"])
        for one in trials
    ]
    parsed = parse_scenario(scenario, need_plan=False)
    return calibrate(parsed, measured, context.calibration or shipped_calibration()).to_data()


def judge_trials(
    context: Context, trials: Sequence[Data], predictions: Sequence[Mapping[str, Any]], budget: Data
) -> Data:
    """Whether another trial is worth it: the gain expected of the plans left against noise and budget."""
    known = Budget(**budget)
    measured = [one for one in trials if one["status"] == "measured"]
    if not measured:
        return asdict(_without_measurement(trials, known, bool(predictions)))
    best = min(measured, key=lambda one: one["step_time_s"])
    surprise = surprise_of(trials)
    return asdict(judge(best["step_time_s"], best["uncertainty"], predictions, known, surprise))


def _without_measurement(trials: Sequence[Data], budget: Budget, has_others: bool) -> Judgement:
    kinds = [(one.get("failure") or {}).get("kind", "not comparable") for one in trials]
    if len(kinds) >= FAILED_ALIKE or not has_others:
        return Judgement(True, f"nothing could be measured: {', '.join(kinds)}; see the trials' evidence")
    return Judgement(bool(budget.spent), budget.spent or "the first trial failed; another plan may run")


def measured_proposals(context: Context, scenario: Data, trials: Sequence[Data]) -> list[Data]:
    """Plans that were measured as proposals, the fastest first; today's own only where nothing beats it."""
    workload = workload_in(context, scenario)
    ordered = sorted(trials, key=lambda one: float(one["step_time_s"]))
    kept = [one for i, one in enumerate(ordered) if one["role"] != "baseline" or i == 0]
    return [_proposal(workload, rank, one) for rank, one in enumerate(kept, start=1)]


def _proposal(workload: Workload, rank: int, trial: Data) -> Data:
    plan = Plan.model_validate(trial["plan"])
    made: Data = proposal(workload, rank, plan, workload.predict([plan])[0], workload.today()).model_dump()
    made["measured"] = {
        **{name: trial[name] for name in ("step_time_s", "interval_s", "noise")},
        **{name: trial[name] for name in ("speedup", "speedup_low", "speedup_high")},
        "peak_memory_gib": trial["peak_memory_bytes"] / GIB if trial["peak_memory_bytes"] else None,
        "predicted_step_time_s": trial["predicted"]["step_time_s"],
        "trial": trial["key"],
    }
    made["evidence"] = [*made["evidence"], {"kind": "trial", "ref": trial["key"], "says": trial["says"]}]
    return made


def workload_in(context: Context, scenario: Data) -> Workload:
    """The scenario as the session predicts it now."""
    return workload_of(
        parse_scenario(scenario, need_plan=False), context.session_calibration or context.calibration
    )


Tool = Callable[..., Any]


def analyse_plan(context: Context, scenario: Data, plan: Data, profile: Data | None = None) -> Data:
    """What a plan is predicted to take, what limits it, and the facts that playbooks ask for."""
    workload, known = workload_in(context, scenario), Plan.model_validate(plan)
    read = Profile.model_validate(profile) if profile else None
    prediction, diagnosis = analyse(workload, known, read)
    facts = situation(workload, known, prediction, read)
    return {
        "prediction": prediction.model_dump(),
        "diagnosis": diagnosis.model_dump(),
        "competing": [one.model_dump() for one in competing(diagnosis)],
        "facts": facts,
    }


def read_traces(context: Context, folder: str) -> Data:
    """The measured diagnosis of a folder of profiler traces."""
    return read_profile(folder).model_dump()


def search_plans(context: Context, scenario: Data, trials: Sequence[Data] = ()) -> Data:
    """Every legal plan searched: the three best, why not others, what would change the answer.

    What trials have settled is left out; where that is everything, it stands under `settled`."""
    workload = workload_in(context, scenario)
    try:
        return propose(steered(workload, trials), context.progress).model_dump()
    except InfeasibleError:
        if not trials:
            raise
        everything = propose(workload, context.progress).model_dump()
        return {**everything, "proposals": [], "settled": everything["proposals"]}


def score_plan(
    context: Context, scenario: Data, start: Data, fields: Data, best: Data, trials: Sequence[Data] = ()
) -> Data:
    """A plan from elsewhere, judged like the search's own; `fields` replace those of the plan `start`."""
    workload = workload_in(context, scenario)
    try:
        plan = complete(workload, Plan.model_validate(start), fields)
    except InputError as error:
        return {
            "plan": fields,
            "summary": str(fields),
            "accepted": False,
            "binding": "rule",
            "why": str(error),
        }
    if is_settled(plan.model_dump(), steered(workload, trials)):
        why = "a trial has measured it, or one that would run alike has failed"
        settled = {"accepted": False, "binding": "trial", "why": why}
        return {"plan": plan.model_dump(), "summary": short(plan), **settled}
    return score(workload, plan, Proposal.model_validate(best)).model_dump(exclude=FROM_ELSEWHERE)


def join_plans(context: Context, proposals: Sequence[Data], scored: Sequence[Data]) -> list[Data]:
    """The proposals with what beats one of them clearly; at most three."""
    known = [Proposal.model_validate(one) for one in proposals]
    judged = [ScoredPlan.model_validate(one) for one in scored]
    return [one.model_dump() for one in join(known, judged)]


def resolve_moves(context: Context, scenario: Data, plan: Data, playbooks: Sequence[Data]) -> list[Data]:
    """The playbooks with their moves as fields of this plan."""
    known, start = parse_scenario(scenario, need_plan=False), Plan.model_validate(plan)
    return [
        {**book, "resolved_moves": moves.resolve_moves(book.get("moves", []), start, known)}
        for book in playbooks
    ]


def supporting_playbooks(
    context: Context, scenario: Data, before: Data, after: Data, playbooks: Sequence[Data]
) -> list[dict[str, str]]:
    """Evidence for a proposal: the playbooks whose moves it makes."""
    known = parse_scenario(scenario, need_plan=False)
    books = [Playbook.model_validate(one) for one in playbooks]
    found = moves.supporting(books, Plan.model_validate(before), Plan.model_validate(after), known)
    return [one.model_dump() for one in found]


def explain_plan(context: Context, scenario: Data, start: Data, fields: Data, best: Data) -> Data:
    """Why a plan is not the first proposal: the rule it breaks, the memory it lacks, or the slower term."""
    scored = score_plan(context, scenario, start, fields, best)
    return {name: scored.get(name) for name in ("summary", "accepted", "binding", "why", "step_time_s")}


def matching_playbooks(context: Context, facts: Data) -> list[Data]:
    """The playbooks whose conditions hold."""
    return [entry.json_body() for entry in matching(facts, context.knowledge.entries(kind="playbook"))]


def find_knowledge(
    context: Context, query: str, facets: Data, tenant: str | None, limit: int = 6
) -> list[Data]:
    """Playbooks and past cases nearest to a description; refuted ones are warnings."""
    hits = context.knowledge.search(query, facets=facets, tenant=tenant, limit=limit)
    return [
        {
            "id": hit.entry.id,
            "kind": hit.entry.kind,
            "title": hit.entry.title,
            "status": hit.entry.status,
            "warning": hit.warning,
            "score": hit.score,
            "body": hit.entry.json_body(),
        }
        for hit in hits
    ]


def read_statements(context: Context, notes: str, statements: Sequence[Data], scenario: Data) -> Data:
    """Which statements about the notes their own words bear out, and the scenario that results."""
    return apply_notes(notes, statements, scenario)


def verify_numbers(
    context: Context, scenario: Data, proposals: Sequence[Data], baseline: Data | None
) -> Data:
    """Every number of the proposals, computed a second time."""
    known = [Proposal.model_validate(one) for one in proposals]
    today = Prediction.model_validate(baseline) if baseline else None
    return recheck(workload_in(context, scenario), known, today).model_dump()


def judge_lever(
    context: Context, diagnosis: Data, proposals: Sequence[Data], prediction: Data, subject: str
) -> Data:
    """Says so in the diagnosis where no plan beats today's beyond the error of a comparison."""
    if subject != "today":
        return diagnosis
    known = [Proposal.model_validate(one) for one in proposals]
    limits, predicted = Diagnosis.model_validate(diagnosis), Prediction.model_validate(prediction)
    return with_lever(limits, known, predicted).model_dump()


def check_prose(context: Context, texts: Mapping[str, str], figures: object, names: Sequence[str]) -> Data:
    """The texts without numbers that no tool returned; `names` may be quoted whole."""
    known = list(figures_in(figures))
    judged = {name: checked(text, known, names) for name, text in texts.items()}
    struck = [number for _, numbers in judged.values() for number in numbers]
    return {"texts": {name: text for name, (text, _) in judged.items()}, "struck": struck}


def learn_case(context: Context, case: Data, tenant: str | None) -> Data:
    """Keeps the outcome of a session in the knowledge base; the same id is kept once, as first told."""
    known = context.knowledge.find(case["id"], tenant)
    return {"id": (known or context.knowledge.add(case, by="asap", tenant=tenant)).id}


TOOLS: Mapping[str, Tool] = {
    tool.__name__: tool
    for tool in (
        analyse_plan, read_traces, search_plans, score_plan, join_plans, explain_plan, resolve_moves,
        supporting_playbooks, matching_playbooks, find_knowledge, read_statements, verify_numbers,
        judge_lever, check_prose, learn_case, first_plan, predict_plan, compare_trials,
        calibrate_model, judge_trials, measured_proposals,
    )
}  # fmt: skip
