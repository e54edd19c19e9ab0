"""The three questions of a recommendation: what limits a plan, which plans are best, how good is one?"""

import math
from collections.abc import Callable, Mapping
from itertools import product

import numpy as np

from tools.cost.calibration import Calibration
from tools.cost.memory import GIB
from tools.cost.predict import BOTTLENECKS, Prediction
from tools.cost.terms import STEP_TERMS
from tools.recommend.choose import TIE, choose, deciding_habit
from tools.recommend.diagnosis import (
    diagnose,
    numerics_changing_options,
    read_profile,
    with_lever,
    with_profile,
)
from tools.recommend.dial import undialled, with_dial
from tools.recommend.measured import measured_workload, without_slower
from tools.recommend.proposal import proposal
from tools.recommend.report import (
    Diagnosis,
    Evidence,
    Proposal,
    Recalibration,
    Recommendation,
    Searched,
    SearchResult,
)
from tools.recommend.score import with_roles
from tools.recommend.sensitivity import pareto, sensitivity
from tools.recommend.why_not import infeasible, rejected
from tools.recommend.workload import PredictedPlan, Workload, limit_to_expressible
from tools.scenario import Plan, Scenario
from tools.scenario.levers import PLAN_SETTINGS, SettingValue, offered_levers
from tools.search.constraints import parse_constraints
from tools.search.ranked import Ranked, front_of, together
from tools.search.search import Search, SearchOutcome
from tools.search.space import table_of
from tools.trace.report import Profile

MIN_GAIN = 0.002
"""Of the step: a switch that saves less is not worth a change."""
MAX_ROUNDS = 4


def best_settings(workload: Workload, plan: Plan) -> dict[str, SettingValue]:
    """The switches that make this plan faster than today's do and let it fit; empty if none does."""
    chosen: dict[str, SettingValue] = {}
    fastest_s = workload.predict([plan])[0].step_time_s
    for _ in range(MAX_ROUNDS):
        tried = [{**chosen, **step} for step in _steps(workload.with_settings(chosen), plan)]
        if not tried:
            break
        timed = [(_step_time_s(workload.with_settings(settings), plan), settings) for settings in tried]
        time_s, settings = min(timed, key=lambda pair: pair[0])
        if time_s > fastest_s * (1.0 - MIN_GAIN):
            break
        fastest_s, chosen = time_s, settings
    return chosen


def _step_time_s(workload: Workload, plan: Plan) -> float:
    prediction = workload.predict([plan])[0]
    fits = prediction.peak_memory_gib <= workload.limit_gib
    return prediction.step_time_s if fits else float("inf")


def _steps(workload: Workload, plan: Plan) -> list[Mapping[str, SettingValue]]:
    """One or two switches that the plan meets the needs of and that are not as they should be already."""
    scenario = workload.with_plan(plan)
    single: list[dict[str, SettingValue]] = [
        {lever.setting: lever.value}
        for lever in offered_levers(scenario)
        if lever.setting not in PLAN_SETTINGS
        and getattr(scenario.training, lever.setting) not in (None, lever.value)
        and lever.suits(scenario)
    ]
    pairs = [{**left, **right} for left, right in product(single, single) if left.keys() != right.keys()]
    return [*single, *pairs]


SURE = 0.95
"""Probability of fitting below which memory is the main risk of a plan."""
RISKY_TERMS = (*BOTTLENECKS["communication"], *BOTTLENECKS["pipeline"], *BOTTLENECKS["host"])
"""Terms that depend on the network, the schedule and the host: those that a cluster spoils first."""
HEDGE_SHARE = 0.005
Progress = Callable[[float], None]
REASONER = "expert-rules"


def workload_of(scenario: Scenario, calibration: Calibration | None = None) -> Workload:
    """What a search needs of a scenario; raises InputError for impossible constraints."""
    constraints = parse_constraints(scenario.constraints, scenario.plan)
    return Workload.of(scenario, limit_to_expressible(scenario, constraints), calibration)


def best_plans(workload: Workload, progress: Progress | None = None) -> tuple[list[Plan], SearchOutcome]:
    """At most three plans that really differ, best first; raises InfeasibleError if nothing fits."""
    plans, result, _ = _find(workload, progress)
    return plans, result


def _find(workload: Workload, progress: Progress | None) -> tuple[list[Plan], SearchOutcome, Ranked]:
    """The plans to propose, the search's result, and the plans with recomputation dialled."""
    result = Search(workload.scenario, workload.constraints, workload.calibration).run(progress)
    dialled = with_dial(workload, result.best)
    plans = choose(workload, dialled)
    if not plans:
        raise infeasible(workload, progress)
    return plans, result, dialled


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
    plans, found, dialled = _find(workload, progress)
    if next_trial:
        first_plan = next_trial(dialled)
        plans = [first_plan, *(plan for plan in plans if plan != first_plan)][: max(len(plans), 1)]
    if keep:
        keep(found.every)
    today, first = workload.today(), workload.predict(plans[:1])[0]
    proposals = [_proposed(workload, rank, plan, today) for rank, plan in enumerate(plans, start=1)]
    return SearchResult(
        proposals=_with_reasons(workload, with_roles(proposals)),
        rejected=rejected(workload, plans[0], first),
        searched=Searched(plans=found.searched, timed=found.timed, seconds=found.seconds, space=found.space),
        sensitivity=sensitivity(workload, found),
        beyond_contract=numerics_changing_options(workload, plans[0], first),
        pareto=pareto(front_of(together([undialled(found.front), undialled(dialled)]))),
    )


def _proposed(workload: Workload, rank: int, plan: Plan, today: PredictedPlan | None) -> Proposal:
    """With the switches of the framework that suit the plan."""
    settings = best_settings(workload, plan)
    tuned = workload.with_settings(settings)
    made = proposal(tuned, rank, plan, tuned.predict([plan])[0], today)
    return made.model_copy(update={"settings": settings})


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
    return Recommendation(
        id=scenario.id,
        diagnosis=diagnosis,
        baseline=prediction if scenario.plan else None,
        proposals=without_slower(result.proposals, recalibrated.measured_s if recalibrated else None),
        rejected=result.rejected,
        searched=result.searched,
        sensitivity=result.sensitivity,
        beyond_contract=result.beyond_contract,
        pareto=result.pareto,
        reasoner=REASONER,
    )


def _with_reasons(workload: Workload, proposals: list[Proposal]) -> list[Proposal]:
    """What the recommended plan gives up against the fastest and why; which others tie with it."""
    first, others = proposals[0], proposals[1:]
    faster = min(others, key=lambda other: other.prediction.step_time_s, default=first)
    behind = math.log(first.prediction.step_time_s / faster.prediction.step_time_s)
    if behind > 0:
        first = _with_evidence(first, _why_before(workload, first, faster, behind))
    tied = [_with_tie(workload, other, proposals[0]) for other in others]
    return [first, *(_with_hedge(other, proposals[0]) for other in tied)]


def _why_before(workload: Workload, first: Proposal, faster: Proposal, behind: float) -> Evidence:
    pair = Ranked(
        table_of([first.plan, faster.plan]),
        np.array([first.prediction.step_time_s, faster.prediction.step_time_s]),
        np.array([first.prediction.peak_memory_gib, faster.prediction.peak_memory_gib]) * GIB,
    )
    cost = "ties with" if behind <= TIE else f"gives up {math.expm1(behind):.1%} of predicted time against"
    error = f"a comparison errs by {math.expm1(workload.pair_error):.0%}"
    says = f"{cost} the fastest ({error}): practitioners would take {deciding_habit(workload, pair)}"
    return Evidence(kind="knowledge", ref="calibration/preferences.json", says=says)


def _with_tie(workload: Workload, proposal: Proposal, first: Proposal) -> Proposal:
    ratio = math.log(proposal.prediction.step_time_s / first.prediction.step_time_s)
    if abs(ratio) > workload.pair_error:
        return proposal
    says = "a tie with the first: the difference is inside the error of a comparison"
    return _with_evidence(proposal, Evidence(kind="model", ref="step_time_s", says=says))


def _with_hedge(proposal: Proposal, first: Proposal) -> Proposal:
    """What an alternative is for: which risk of the first it does not share, or shares less."""
    own, risky = proposal.prediction, first.prediction
    if proposal.role != "alternative":
        return proposal
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
        return proposal
    says = f"hedges against {hedged}: {instead}"
    return _with_evidence(proposal, Evidence(kind="model", ref=ref, says=says))


def _with_evidence(proposal: Proposal, reason: Evidence) -> Proposal:
    rationale = f"{proposal.rationale} {reason.says[0].upper()}{reason.says[1:]}."
    return proposal.model_copy(update={"evidence": [*proposal.evidence, reason], "rationale": rationale})
