"""A measured step rules over the prediction: the cost model is calibrated until it gives the measured time.

Traces measure its terms: each gets the constants that give it. What is left, and all of a step time that
stands alone, is scaled alike, since one number cannot tell what of it is off; what is wrong for all plans
alike then cancels, and the interval of a prediction becomes that of a comparison.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tools.model.calibration import Calibration, calibrated_to
from tools.model.observations import with_seen
from tools.model.predict import EVEN, Prediction, predict
from tools.model.runs import Measured, Run
from tools.physics.encode import encode
from tools.physics.inputs import RowKeys
from tools.physics.memory import GIB
from tools.recommend.report import Evidence, PersonQuestion, Proposal, Recalibration
from tools.recommend.words import format_same_decimals, short
from tools.recommend.workload import Workload
from tools.scenario import Plan, PlanColumns
from tools.search.ranked import Ranked, fastest_first, together
from tools.trace.compare import PredictionComparison
from tools.trace.report import Profile
from tools.trace.terms import HOST

TODAY = "today"
"""The name of the run of today's plan, and its source where the step is stated beside other runs."""


def recalibrate(
    workload: Workload, plan: Plan, measured_s: float, comparison: PredictionComparison | None = None
) -> tuple[Workload, Recalibration]:
    """The workload whose prediction of this plan is the measured step; by term if its terms were measured."""
    scenario, calibration = workload.with_plan(plan), workload.calibration
    keys = encode([scenario])[1]
    model_s = by_term_s = predict([scenario], calibration)[0].step_time_s
    if comparison is not None and comparison.num_steps:
        measured = {constant.name: constant.value for constant in comparison.coefficients}
        calibration = _with_constants(calibration, keys, measured)
        by_term_s = predict([scenario], calibration)[0].step_time_s
        # Idle time and waiting beyond the constants' bounds belong to the step, not to its arithmetic.
        host_s = sum(term.measured_s - term.calibrated_s for term in comparison.terms if term.term == HOST)
        if (lost_s := min(measured_s - by_term_s, host_s)) > 0:
            overhead_s = float(calibration.coefficients(keys).step_overhead_s) + lost_s
            calibration = _with_constants(calibration, keys, {"step_overhead_s": overhead_s})
            by_term_s = predict([scenario], calibration)[0].step_time_s
    calibration = calibration.scaled(keys, workload.kind, measured_s / by_term_s)
    calibrated_s = predict([scenario], calibration)[0].step_time_s
    took, predicted = format_same_decimals(measured_s, model_s)
    return replace(workload, calibration=calibration), Recalibration(
        measured_s=measured_s,
        model_s=model_s,
        calibrated_s=calibrated_s,
        summary=f"measured {took} s, model {predicted} s, recalibrated",
    )


def _with_constants(calibration: Calibration, keys: RowKeys, measured: Mapping[str, float]) -> Calibration:
    """Published runs still correct it: a session keeps constants and not whether they do."""
    return replace(calibrated_to(calibration, keys, measured), residual=calibration.residual)


def measured_workload(
    workload: Workload, plan: Plan, profile: Profile | None, stated_s: float | None = None
) -> tuple[Workload, Recalibration | None]:
    """By the traces' step if they are of this job, else by the step time that notes state.

    A plan that takes a measured time runs: where the model says that it cannot, the step is evidence."""
    if profile is not None and profile.step_time_s and (profile.match is None or profile.match.agrees):
        workload, told = recalibrate(workload, plan, profile.step_time_s, profile.comparison)
        source = "trace"
    elif stated_s:
        recalibrated, told = recalibrate(workload, plan, stated_s)
        workload, source = _as_other_runs_say(workload, plan, stated_s) or recalibrated, "notes"
    else:
        return workload, None
    if not workload.predict([plan])[0].fits:
        workload = _with_todays_run(workload, plan, told.measured_s, source)
    return workload, told


def _with_todays_run(workload: Workload, plan: Plan, took_s: float, source: str) -> Workload:
    seen, took = workload.calibration.seen, Measured(step_time_s=took_s)
    run = Run(scenario=workload.with_plan(plan), measured=took, id=TODAY, source=source)
    others = [known for known in seen.runs if known.id != TODAY] if seen else []
    return replace(workload, calibration=with_seen(workload.calibration, [*others, run]))


def _as_other_runs_say(workload: Workload, plan: Plan, stated_s: float) -> Workload | None:
    """With other runs of this job a stated step is one of them: all plans take as much longer as the median
    of them and the model says, and what today's takes beyond that is its own. None without others."""
    calibration = workload.calibration
    runs = calibration.seen.of_job(workload.scenario) if calibration.seen else []
    plans = {run.scenario.plan: run.measured.step_time_s for run in runs if run.id != TODAY}
    others = {own: took_s for own, took_s in plans.items() if own not in (None, plan) and took_s}
    if not others:
        return None
    scenarios = [workload.with_plan(own) for own in (plan, *others)]
    predicted = predict(scenarios, replace(calibration, seen=None))
    ratios = [
        took_s / each.step_time_s
        for each, took_s in zip(predicted, (stated_s, *others.values()), strict=True)
    ]
    keys, factor = encode(scenarios[:1])[1], float(np.median([1.0, *ratios]))
    scaled = replace(workload, calibration=calibration.scaled(keys, workload.kind, factor))
    return _with_todays_run(scaled, plan, stated_s, TODAY)


def as_seen(workload: Workload, ranked: Ranked) -> Ranked:
    """What a search found without the plans that runs speak against, and with those of this job that have
    run, wherever the search looked."""
    seen = workload.calibration.seen
    if seen is None:
        return ranked
    plans = {run.scenario.plan: None for run in seen.of_job(workload.scenario) if not run.crashed}
    allowed = [
        plan
        for plan in plans
        if plan is not None and workload.permits(plan) and workload.objection(plan) is None
    ]
    if allowed:
        columns = PlanColumns.of(allowed)
        costs = workload.costs(columns)
        ran = Ranked(columns, costs.step_time_s, np.minimum(costs.memory_bytes, workload.limit_gib * GIB))
        ranked = together([ranked, ran])
    if not len(ranked.step_time_s):
        return ranked
    likely = workload.fit_probability(ranked.plans, ranked.memory_bytes)
    return fastest_first(ranked.take(likely >= EVEN))


def citations(workload: Workload, plan: Plan, prediction: Prediction) -> tuple[list[Evidence], list[str]]:
    """What runs say of a plan, as evidence, and the risks that crashes show: its own, or the crash that says
    most of those that make it less likely to run."""
    seen, scenario = workload.calibration.seen, workload.with_plan(plan)
    evidence, risks = [], []
    for run in seen.cited(scenario) if seen else []:
        evidence.append(Evidence(kind="knowledge" if run.is_told else "trial", ref=run.ref, says=run.summary))
        risks += [f"this plan {run.summary} ({run.ref})"] if run.is_crash else []
        risks += [f"{run.summary} ({run.ref}): run it again"] if run.is_doubted else []
    if seen and not evidence and (crash := seen.nearest_crash(scenario, prediction.peak_memory_gib * GIB)):
        assert crash.scenario.plan is not None
        says = f"{short(crash.scenario.plan)} crashed ({crash.title}), and this plan is like it"
        risks.append(f"{says}: {prediction.fit_probability:.0%} likely to run")
        evidence.append(Evidence(kind="trial", ref=f"crash:{crash.title}", says=says))
    return evidence, risks


def without_slower(proposals: Sequence[Proposal], measured_s: float | None) -> list[Proposal]:
    """No target is slower than what was measured; the first proposal stays if all are."""
    if measured_s is None:
        return list(proposals)
    faster = [plan for plan in proposals if plan.prediction.step_time_s <= measured_s * (1 + 1e-6)]
    kept = faster or proposals[:1]
    return [plan.model_copy(update={"rank": rank}) for rank, plan in enumerate(kept, start=1)]


def memory_questions(workload: Workload, today: Plan) -> list[PersonQuestion]:
    """A plan of today that cannot run by the memory model: a person must say whether it does, or why."""
    now = workload.predict([today])[0]
    alone = replace(workload.calibration, seen=None)
    by_model = now if workload.calibration.seen is None else predict([workload.with_plan(today)], alone)[0]
    if by_model.fits or workload.has_crashed(today):
        return []
    needed = f"By the memory model today's plan needs {by_model.peak_memory_gib:.1f} GiB per device: too much"
    asked = "Name what saves memory (offload, recompute_modules, optimizer_state), or report its peak."
    if now.fits:
        priced = f"since it runs, it is priced with {now.peak_memory_gib:.1f} GiB"
        return [PersonQuestion(field="plan", text=f"{needed}; {priced}. {asked}")]
    return [PersonQuestion(field="plan", text=f"{needed}. Does it run? {asked}")]
