"""The three questions of a recommendation: what limits a plan, which plans are best, how good is one?"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product

from pydantic import JsonValue

from tools.model.calibration import Calibration, shipped_calibration
from tools.model.intervals import SIGMAS
from tools.model.predict import Prediction
from tools.model.update import REPEAT
from tools.physics.terms import BOTTLENECKS, STEP_TERMS
from tools.recommend.choose import MAX_PROPOSALS, SAFE, TIE, WINDOW, choose
from tools.recommend.diagnosis import (
    diagnose,
    numerics_changing_options,
    read_profile,
    with_lever,
    with_profile,
)
from tools.recommend.dial import with_dial, with_dial_columns
from tools.recommend.measured import as_seen, measured_workload, memory_questions, without_slower
from tools.recommend.proposal import proposal
from tools.recommend.report import (
    Diagnosis,
    Evidence,
    ExplainedPlan,
    Proposal,
    Recalibration,
    Recommendation,
    Searched,
    SearchResult,
)
from tools.recommend.score import complete, with_roles, without_gains
from tools.recommend.sensitivity import pareto, sensitivity
from tools.recommend.why_not import explain_plan, infeasible, rejected
from tools.recommend.workload import PredictedPlan, Workload, limit_to_expressible
from tools.scenario import Plan, Scenario, check_framework
from tools.scenario.levers import PLAN_SETTINGS, SettingValue, offered_levers
from tools.search.constraints import parse_constraints
from tools.search.ranked import Ranked, front_of, together
from tools.search.search import Progress, Search, SearchOutcome
from tools.trace.report import Profile

MIN_GAIN = 0.002
"""Share of the step: a switch that saves less is not worth a change."""
MAX_ROUNDS = 4
SURE = 0.95
"""Probability of fitting below which memory is the main risk of a plan."""
RISKY_TERMS = (*BOTTLENECKS["communication"], *BOTTLENECKS["pipeline"], *BOTTLENECKS["host"])
"""Terms that depend on the network, the schedule and the host: those that a cluster spoils first."""
HEDGE_SHARE = 0.005
REASONER = "expert-rules"


def workload_of(scenario: Scenario, calibration: Calibration | None = None) -> Workload:
    """What a search needs of a scenario; raises InputError for impossible constraints, and if the framework
    cannot train the model."""
    check_framework(scenario.model, scenario.cluster, scenario.training)
    constraints = parse_constraints(scenario.constraints, scenario.plan)
    limited = limit_to_expressible(scenario, constraints)
    return Workload(scenario, limited, calibration or shipped_calibration())


def best_plans(workload: Workload, progress: Progress | None = None) -> tuple[list[Plan], SearchOutcome]:
    """At most three plans that really differ, best first; raises InfeasibleError if nothing fits."""
    plans, outcome, _ = _search(workload, progress)
    return plans, outcome


def explain_against_best(
    workload: Workload, fields: Mapping[str, JsonValue], progress: Progress | None = None
) -> ExplainedPlan:
    """The plan with these fields, the others as in the best one, beside the best one."""
    winner = best_plans(workload, progress)[0][0]
    return ExplainedPlan(
        winner=winner, **dict(explain_plan(workload, complete(workload, winner, fields), winner))
    )


def _search(workload: Workload, progress: Progress | None) -> tuple[list[Plan], SearchOutcome, Ranked]:
    """The plans to propose, the search's outcome, and its best plans with recomputation dialled."""
    outcome = Search(workload.scenario, workload.constraints, workload.calibration).run(progress)
    dialled = as_seen(workload, with_dial(workload, outcome.best))
    plans = choose(workload, dialled)
    if plans:
        return plans, outcome, dialled
    if len(dialled.step_time_s) and outcome.space == "practice":
        # Of what people usually run the configuration can say nothing: the rest of what is legal may do.
        everything = replace(workload, constraints=replace(workload.constraints, space="all"))
        return _search(everything, progress)
    raise infeasible(workload, dialled, progress)


def analyse(
    workload: Workload, plan: Plan, profile: Profile | None = None, recalibrated: Recalibration | None = None
) -> tuple[Prediction, Diagnosis]:
    """The plan's prediction and what limits it; `profile` is what `read_profile` made of its traces."""
    prediction = workload.predict([plan])[0]
    diagnosis = diagnose(workload, prediction)
    if profile is None:
        return prediction, diagnosis.model_copy(update={"recalibrated": recalibrated})
    return prediction, with_profile(diagnosis, profile, prediction, recalibrated)


def propose(
    workload: Workload,
    progress: Progress | None = None,
    keep: Callable[[Ranked], None] | None = None,
    next_trial: Callable[[Ranked], Plan] | None = None,
) -> SearchResult:
    """The best plans of every legal one, why not others, and what would change the answer.

    `keep` is handed every plan that was timed; what `next_trial` chooses of them is proposed first."""
    plans, found, dialled = _search(workload, progress)
    if next_trial:
        first_plan = next_trial(dialled)
        plans = [first_plan, *(plan for plan in plans if plan != first_plan)][: max(len(plans), 1)]
    if keep:
        keep(found.every)
    today, proposals = workload.today(), list[Proposal]()
    for rank, plan in enumerate(plans, start=1):
        settings = best_settings(workload, plan)
        tuned = workload.with_settings(settings)
        made = proposal(tuned, rank, plan, tuned.predict([plan])[0], today)
        proposals.append(made.model_copy(update={"settings": settings}))
    if next_trial is None:
        proposals = _fastest_first_if_due(proposals)
    if today and next_trial is None and _stays(workload, today, proposals):
        others = [entry for entry in proposals if entry.plan != today.plan]
        proposals = [proposal(workload, 1, today.plan, today.prediction, today), *others][:MAX_PROPOSALS]
        plans = [entry.plan for entry in proposals]
    return SearchResult(
        proposals=_with_reasons(with_roles(proposals)),
        rejected=rejected(workload, plans[0], workload.predict(plans[:1])[0]),
        searched=Searched(plans=found.searched, timed=found.timed, seconds=found.seconds, space=found.space),
        sensitivity=sensitivity(workload, found),
        beyond_contract=numerics_changing_options(workload, plans[0]),
        pareto=pareto(front_of(together([with_dial_columns(found.front), with_dial_columns(dialled)]))),
    )


def _fastest_first_if_due(proposals: list[Proposal]) -> list[Proposal]:
    """Settings may have moved them: the first must still be likely to fit, near the fastest and unbeaten."""
    safe = [entry for entry in proposals if entry.prediction.fit_probability >= SAFE] or proposals
    fastest = min(safe, key=lambda entry: entry.prediction.step_time_s)
    first, best = proposals[0].prediction, fastest.prediction
    is_near = first.step_time_s <= (1.0 + WINDOW) * best.step_time_s
    if is_near and proposals[0] in safe and first.peak_memory_gib < best.peak_memory_gib:
        return proposals
    return [fastest, *(entry for entry in proposals if entry is not fastest)]


def _stays(workload: Workload, today: PredictedPlan, proposals: Sequence[Proposal]) -> bool:
    """Whether no plan beats today's by more than a comparison errs, and today's may be proposed."""
    fastest_s = min(entry.prediction.step_time_s for entry in proposals)
    gain = math.log(today.prediction.step_time_s / fastest_s)
    fits = today.prediction.peak_memory_gib <= workload.limit_gib or workload.has_run(today.plan)
    if gain > workload.pair_error or workload.why_unfit(today) is not None or not fits:
        return False
    return _may_run(workload, today.plan) and not _is_outrun(workload, today.plan)


def _may_run(workload: Workload, plan: Plan) -> bool:
    return workload.permits(plan) and workload.objection(plan) is None


def _is_outrun(workload: Workload, today: Plan) -> bool:
    """Whether another plan of this job ran faster than today's did, beyond what runs of one plan differ by:
    then what a comparison of predictions errs by does not speak for today's."""
    seen = workload.calibration.seen
    if seen is None:
        return False
    own = [took_s for run in seen.of_plan(workload.with_plan(today)) if (took_s := run.measured.step_time_s)]
    others = [
        run.measured.step_time_s
        for run in seen.of_job(workload.scenario)
        if run.measured.step_time_s and run.scenario.plan and _may_run(workload, run.scenario.plan)
    ]
    return bool(own and others) and math.log(min(own) / min(others)) > SIGMAS * math.sqrt(2.0) * REPEAT


def best_settings(workload: Workload, plan: Plan) -> dict[str, SettingValue]:
    """The switches that make this plan faster than today's do and let it fit; empty if none does.

    One or two are set at a time: those that the plan meets the needs of and that are not as they should be.
    """
    chosen: dict[str, SettingValue] = {}
    fastest_s = workload.predict([plan])[0].step_time_s
    for _ in range(MAX_ROUNDS):
        scenario = workload.with_settings(chosen).with_plan(plan)
        single: list[dict[str, SettingValue]] = [
            {lever.setting: lever.value}
            for lever in offered_levers(scenario)
            if lever.is_searched
            and lever.setting not in PLAN_SETTINGS
            and getattr(scenario.training, lever.setting) not in (None, lever.value)
            and lever.suits(scenario)
        ]
        pairs = [{**left, **right} for left, right in product(single, single) if left.keys() != right.keys()]
        time_s, settings = math.inf, chosen
        for tried in ({**chosen, **step} for step in [*single, *pairs]):
            tuned = workload.with_settings(tried)
            prediction = tuned.predict([plan])[0]
            if prediction.peak_memory_gib <= tuned.limit_gib and prediction.step_time_s < time_s:
                time_s, settings = prediction.step_time_s, tried
        if time_s > fastest_s * (1.0 - MIN_GAIN):
            break
        fastest_s, chosen = time_s, settings
    return chosen


def optimize(
    scenario: Scenario, progress: Progress | None = None, calibration: Calibration | None = None
) -> Recommendation:
    """Searches every legal plan, by rules alone; raises InfeasibleError if none fits.

    `progress` is called with the share done, from 0 to 1. For the fields see `Recommendation`.
    """
    workload = workload_of(scenario, calibration)
    profile = read_profile(scenario.traces, scenario) if scenario.traces else None
    recalibrated = None
    if scenario.plan:
        workload, recalibrated = measured_workload(workload, scenario.plan, profile)
    result = propose(workload, progress)
    plan = scenario.plan or result.proposals[0].plan
    prediction, diagnosis = analyse(workload, plan, profile, recalibrated)
    if scenario.plan:
        diagnosis = with_lever(diagnosis, result.proposals, prediction)
    kept = with_roles(without_slower(result.proposals, recalibrated.measured_s if recalibrated else None))
    if scenario.plan and not prediction.fits:
        kept = without_gains(kept, keeps_rationale=True)  # it names what today's plan lacks
    return Recommendation(
        **{**dict(result), "proposals": kept},
        id=scenario.id,
        diagnosis=diagnosis,
        baseline=prediction if scenario.plan else None,
        questions=memory_questions(workload, scenario.plan) if scenario.plan else [],
        reasoner=REASONER,
    )


def _with_reasons(proposals: list[Proposal]) -> list[Proposal]:
    """Which risk of the first an alternative does not share, or shares less, and which loses least with half
    the network, one slow node and what the model may err by."""

    def worst_s(entry: Proposal) -> float:
        told = entry.robustness
        return max(told.worst_s, told.half_network_s, told.slow_node_s) if told else math.inf

    first, most_robust, made = proposals[0], min(proposals, key=worst_s), list[Proposal]()
    for entry in proposals:
        hedge = _hedge(entry.prediction, first.prediction) if entry.role == "alternative" else None
        made.append(_with_evidence(entry, hedge) if hedge else entry)
        if entry is most_robust and len(proposals) > 1:
            says = f"the most robust: at worst {worst_s(entry):.3g} s with a slower network, node or model"
            made[-1] = _with_evidence(made[-1], Evidence(kind="model", ref="robust", says=says))
    return made


def _hedge(own: Prediction, risky: Prediction) -> Evidence | None:
    """Which risk of the first plan another one does not share, or shares less."""
    saved_s = {name: risky.breakdown_s[name] - own.breakdown_s[name] for name in RISKY_TERMS}
    ref = max(saved_s, key=lambda name: saved_s[name])
    is_memory = risky.fit_probability < SURE or saved_s[ref] < HEDGE_SHARE * risky.step_time_s
    if is_memory and own.peak_memory_gib < risky.peak_memory_gib * (1.0 - TIE):
        ref, hedged = "peak_memory_gib", "running out of memory"
        instead = f"{own.peak_memory_gib:.1f} GiB instead of {risky.peak_memory_gib:.1f}"
    elif saved_s[ref] > 0:
        hedged = STEP_TERMS[ref].phrase
        instead = f"{own.breakdown_s[ref]:.3g} s per step instead of {risky.breakdown_s[ref]:.3g}"
    else:
        return None
    return Evidence(kind="model", ref=ref, says=f"hedges against {hedged}: {instead}")


def _with_evidence(proposal: Proposal, reason: Evidence) -> Proposal:
    rationale = f"{proposal.rationale} {reason.says[0].upper()}{reason.says[1:]}."
    return proposal.model_copy(update={"evidence": [*proposal.evidence, reason], "rationale": rationale})
