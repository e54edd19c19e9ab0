"""The tools of `tools/`, as the agents call them: plain data in, plain data out, the context first.

Not here: arithmetic of any kind, and who calls what (the nodes).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from graph.context import Context
from graph.state import Data
from graph.trial_toolbox import (
    calibrate_model,
    compare_trials,
    first_plan,
    judge_trials,
    measured_proposals,
    predict_plan,
    workload_in,
)
from tools.errors import InfeasibleError, InputError
from tools.kb import matching
from tools.recommend import moves
from tools.recommend.diagnosis import competing, with_lever
from tools.recommend.notes import apply_notes
from tools.recommend.optimize import analyse, propose
from tools.recommend.profile import read_profile
from tools.recommend.prose import checked, figures_in
from tools.recommend.score import complete, join, score
from tools.recommend.situation import situation
from tools.recommend.verify import recheck
from tools.recommend.words import short
from tools.scenario import Plan, parse_scenario
from tools.trials.steering import is_settled, steered

Tool = Callable[..., Any]


def analyse_plan(context: Context, scenario: Data, plan: Data, profile: Data | None = None) -> Data:
    """What a plan is predicted to take, what limits it, and the facts that playbooks ask for."""
    workload, known = workload_in(context, scenario), Plan.model_validate(plan)
    prediction, diagnosis = analyse(workload, known, profile)
    facts = situation(workload, known, prediction, profile)
    return {
        "prediction": prediction,
        "diagnosis": diagnosis,
        "competing": competing(diagnosis),
        "facts": facts,
    }


def read_traces(context: Context, folder: str) -> Data:
    """The measured diagnosis of a folder of profiler traces."""
    return read_profile(folder)


def search_plans(context: Context, scenario: Data, trials: Sequence[Data] = ()) -> Data:
    """Every legal plan searched: the three best, why not others, what would change the answer.

    What trials have settled is left out; where that is everything, it stands under `settled`."""
    workload = workload_in(context, scenario)
    try:
        return propose(steered(workload, trials), context.progress)
    except InfeasibleError:
        if not trials:
            raise
        everything = propose(workload, context.progress)
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
    return score(workload, plan, best)


def join_plans(context: Context, proposals: Sequence[Data], scored: Sequence[Data]) -> list[Data]:
    """The proposals with what beats one of them clearly; at most three."""
    return join(proposals, scored)


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
    return moves.supporting(playbooks, Plan.model_validate(before), after, known)


def explain_plan(context: Context, scenario: Data, start: Data, fields: Data, best: Data) -> Data:
    """Why a plan is not the first proposal: the rule it breaks, the memory it lacks, or the slower term."""
    scored = score_plan(context, scenario, start, fields, best)
    return {name: scored.get(name) for name in ("summary", "accepted", "binding", "why", "step_time_s")}


def matching_playbooks(context: Context, facts: Data) -> list[Data]:
    """The playbooks whose conditions hold."""
    return [dict(entry.body) for entry in matching(facts, context.knowledge.entries(kind="playbook"))]


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
            "body": dict(hit.entry.body),
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
    return recheck(workload_in(context, scenario), proposals, baseline)


def judge_lever(
    context: Context, diagnosis: Data, proposals: Sequence[Data], prediction: Data, subject: str
) -> Data:
    """Says so in the diagnosis where no plan beats today's beyond the error of a comparison."""
    return with_lever(diagnosis, proposals, prediction) if subject == "today" else diagnosis


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
