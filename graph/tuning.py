"""What a session's trials say about where it stands, and the functions of `tools/trials` that nodes run."""

from collections.abc import Sequence

from pydantic import JsonValue

from graph.context import Context, Limits
from graph.report import Trial, TrialPrediction, failure_in_words
from graph.state import State, TrialJudgement, TrialRecord
from tools.calibrate.update import calibrate
from tools.cost.calibration import shipped_calibration
from tools.cost.memory import GIB
from tools.recommend.optimize import workload_of
from tools.recommend.proposal import proposal
from tools.recommend.report import Evidence, MeasuredPlan, PlanValue, Proposal
from tools.recommend.words import format_same_decimals, short
from tools.recommend.workload import Workload
from tools.scenario import Plan, Scenario
from tools.trials.gain import Budget, expected_gains, judge, runs_of
from tools.trials.steering import default_plan, with_recompute

PLAN_FOLLOWS = ("dp", "dp_shard", "schedule", "sequence_parallel")
"""Fields that follow from others: a policy that allows those allows these."""


def trials_seen(state: State) -> int:
    """How many trials a part of the state that is made now knows of."""
    return len(state.get("trials", []))


def is_current(state: State, trials_known: int | None) -> bool:
    """Whether a part of the state was made with all that is measured by now; None if it was not made."""
    return trials_known == trials_seen(state)


def has_current_analysis(state: State) -> bool:
    return "analysis" in state and is_current(state, state["analysis"].trials_seen)


def has_current_search(state: State) -> bool:
    return "search" in state and is_current(state, state["search"].trials_seen)


def baseline_of(trials: Sequence[TrialRecord]) -> TrialRecord | None:
    """The trial of today's plan, whatever its outcome."""
    return next((trial for trial in trials if trial.role == "baseline"), None)


def measured(trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Those that may be compared."""
    return [trial for trial in trials if trial.status == "measured"]


def reference_of(trials: Sequence[TrialRecord]) -> TrialRecord | None:
    """What others are compared with: the baseline, or the first plan measured if that failed."""
    return next(iter(measured(trials)), None)


def fastest(trials: Sequence[TrialRecord]) -> TrialRecord | None:
    return min(measured(trials), key=step_time_s, default=None)


def step_time_s(trial: Trial) -> float:
    return float("inf") if trial.step_time_s is None else trial.step_time_s


def first_open_rank(proposals: Sequence[Proposal]) -> int | None:
    """The rank of the best proposal that is not measured yet."""
    return next((proposal.rank for proposal in proposals if proposal.measured is None), None)


def budget_of(limits: Limits, trials: Sequence[TrialRecord]) -> Budget:
    spent = sum(trial.device_hours for trial in trials)
    return Budget(limits.device_hours, limits.trials, spent, len(trials))


def time_left_s(state: State, limits: Limits, now: float) -> float:
    """What is left of a session's time; its trials take their own."""
    waited_s = sum(trial.waited_s for trial in state.get("trials", []))
    return state["session"].started_at + limits.session_s + waited_s - now


def why_ended(state: State, limits: Limits, now: float) -> str | None:
    """Why no further trial is begun; None while one may be."""
    decisions, trials = state.get("decisions", []), state.get("trials", [])
    stopping = state.get("stopping")
    if stopping and is_current(state, stopping.trials_seen) and stopping.stop:
        return stopping.says
    if decisions and decisions[-1].action == "reject":
        return f"{decisions[-1].by or 'a person'} wanted no further trial"
    if time_left_s(state, limits, now) < 0:
        return "the session's time was over"
    return budget_of(limits, trials).spent or (
        "a trial was not started or was ended" if _is_broken(trials) else None
    )


def _is_broken(trials: Sequence[TrialRecord]) -> bool:
    return any(trial.failure and trial.failure.kind in ("cancelled", "no_budget") for trial in trials)


def within_policy(state: State) -> Scenario:
    """The scenario, with every field fixed to today's value that the policy does not let trials change."""
    scenario, policy, today = state["scenario"], state["session"].policy, state["session"].plan
    if policy is None or policy.fields is None or today is None:
        return scenario
    free = {*policy.fields, *PLAN_FOLLOWS}
    fixed: dict[str, PlanValue] = {
        name: value for name, value in today.model_dump().items() if name not in free and value is not None
    }
    return scenario.model_copy(update={"constraints": {**fixed, **scenario.constraints}})


def outcome_in_words(trial: Trial) -> str:
    if trial.status == "refused":
        return f"not compared: {trial.refusals[0].says}"
    if trial.step_time_s is None or trial.interval_s is None:
        return f"it {failure_in_words(trial)}"
    middle, low, high = format_same_decimals(trial.step_time_s, *trial.interval_s)
    pace = f"{middle} s per step ({low} to {high} s)"
    predicted = f"{trial.predicted.step_time_s:.3g} s were predicted before"
    if trial.role == "baseline" or trial.speedup is None:
        return f"measured {pace}; {predicted}"
    return f"measured {pace}, {trial.speedup:.2f}x the baseline's speed; {predicted}"


MAX_FAILURES = 2
"""After this many failures with nothing measured, the installation is at fault and not the plans."""


def calibration_data(context: Context, state: State) -> dict[str, JsonValue] | None:
    """What the session predicts with, if that is not the shipped calibration."""
    return state.get("calibration") or (context.calibration.to_data() if context.calibration else None)


def workload_in(context: Context, scenario: Scenario) -> Workload:
    """The scenario as the session predicts it now."""
    calibration = context.session_calibration or context.calibration or shipped_calibration()
    for known in context.workloads or ():
        if known.calibration is calibration and known.scenario == scenario:
            return known
    made = workload_of(scenario, calibration)
    if context.workloads is not None:
        context.workloads.append(made)
    return made


def first_plan(context: Context, scenario: Scenario, plan: Plan | None) -> Plan:
    """What is measured first: today's plan, or the framework's default."""
    workload = workload_in(context, scenario)
    return with_recompute(workload, plan or default_plan(workload))


def predict_plan(context: Context, scenario: Scenario, plan: Plan) -> TrialPrediction:
    """What the model predicts now, to be compared with what will be measured."""
    prediction = workload_in(context, scenario).predict([plan])[0]
    return TrialPrediction(
        summary=short(plan),
        step_time_s=prediction.step_time_s,
        step_time_low_s=prediction.step_time_low_s,
        step_time_high_s=prediction.step_time_high_s,
        peak_memory_gib=prediction.peak_memory_gib,
    )


def calibrate_model(
    context: Context, scenario: Scenario, trials: Sequence[TrialRecord]
) -> dict[str, JsonValue]:
    """The cost model as the cluster's runs and all measured trials make it."""
    runs = [*context.runs, *runs_of(scenario, trials)]
    base = None if context.runs else context.calibration
    return calibrate(runs, base, own=True).calibration.to_data()


def gains_of(
    context: Context, scenario: Scenario, trials: Sequence[TrialRecord], plans: Sequence[Plan]
) -> list[float]:
    """What each plan is expected to save of the best measured step."""
    if not plans:
        return []
    calibration = context.session_calibration or context.calibration or shipped_calibration()
    planned = [scenario.model_copy(update={"plan": plan}) for plan in plans]
    gains, _ = expected_gains(planned, calibration, runs_of(scenario, trials))
    return [float(gain) for gain in gains]


def judge_trials(
    context: Context, trials: Sequence[TrialRecord], gains: Sequence[float], budget: Budget
) -> TrialJudgement:
    """Whether another trial is worth it: the gain expected of the plans left against noise and budget."""
    comparable = measured(trials)
    if not comparable:
        return _without_measurement(trials, budget, bool(gains))
    best = min(comparable, key=step_time_s)
    judged = judge(gains, best.uncertainty or 0.0, budget)
    return TrialJudgement(
        stop=judged.stop, says=judged.says, expected_gain=judged.expected_gain, noise=judged.noise
    )


def _without_measurement(trials: Sequence[Trial], budget: Budget, has_others: bool) -> TrialJudgement:
    kinds = [trial.failure.kind if trial.failure else "not comparable" for trial in trials]
    if len(kinds) >= MAX_FAILURES or not has_others:
        says = f"nothing could be measured: {', '.join(kinds)}; see the trials' evidence"
        return TrialJudgement(stop=True, says=says)
    says = budget.spent or "the first trial failed; another plan may run"
    return TrialJudgement(stop=bool(budget.spent), says=says)


def measured_proposals(context: Context, scenario: Scenario, trials: Sequence[TrialRecord]) -> list[Proposal]:
    """Measured plans as proposals, the fastest first; today's own only if nothing beats it."""
    workload = workload_in(context, scenario)
    ordered = sorted(trials, key=step_time_s)
    kept = [trial for i, trial in enumerate(ordered) if trial.role != "baseline" or i == 0]
    return [_proposal(workload, rank, trial) for rank, trial in enumerate(kept, start=1)]


def _proposal(workload: Workload, rank: int, trial: TrialRecord) -> Proposal:
    made = proposal(workload, rank, trial.plan, workload.predict([trial.plan])[0], workload.today())
    outcome = MeasuredPlan(
        step_time_s=step_time_s(trial),
        interval_s=trial.interval_s or (step_time_s(trial), step_time_s(trial)),
        noise=trial.noise or 0.0,
        speedup=trial.speedup,
        speedup_low=trial.speedup_low,
        speedup_high=trial.speedup_high,
        peak_memory_gib=trial.peak_memory_bytes / GIB if trial.peak_memory_bytes else None,
        predicted_step_time_s=trial.predicted.step_time_s,
        trial=trial.key,
    )
    evidence = [*made.evidence, Evidence(kind="trial", ref=trial.key, says=trial.says)]
    return made.model_copy(update={"measured": outcome, "evidence": evidence})
