"""A measured step rules over the prediction: the cost model is scaled until it gives the measured time.

All rates and overheads move together, since one step time cannot tell which of them is off; what is wrong for
all plans alike then cancels, and the interval of a prediction becomes that of a comparison.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tools.cost.calibration import Calibration, IntervalModel, calibrated_to
from tools.cost.constants import RowKeys, definitions
from tools.cost.encode import encode
from tools.cost.predict import predict
from tools.recommend.report import Proposal, Recalibration
from tools.recommend.words import format_same_decimals
from tools.recommend.workload import Workload
from tools.scenario import Plan, Scenario
from tools.trace.compare import PredictionComparison
from tools.trace.report import Profile

SLOWER = ("_traffic", "_s")
FASTER = ("_efficiency",)
"""Constants that a step's time grows or shrinks with, by the last word of their names."""
MAX_EXPONENT = math.log(8.0)
MAX_ROUNDS = 12
EXACT = 1e-9
NEAR = 0.15
"""Of the step: totals that differ less agree."""
MIN_TERM_DIFFERENCE = 0.1
"""Of the step: terms that differ more are named."""


def recalibrate(workload: Workload, plan: Plan, measured_s: float) -> tuple[Workload, Recalibration]:
    """The workload whose prediction of this plan is the measured step, as far as the constants' bounds go."""
    scenario = workload.with_plan(plan)
    _, keys = encode([scenario])
    constants = _time_constants(keys, workload.calibration)
    model_s = _predicted_s(scenario, workload.calibration)

    def scaled(exponent: float) -> Calibration:
        moved = {name: value * math.exp(sign * exponent) for name, (value, sign) in constants.items()}
        return calibrated_to(workload.calibration, keys, moved)

    # Nearly every term is proportional to the scale, so that adding the error again and again converges.
    exponent = error = math.log(measured_s / model_s)
    for _ in range(MAX_ROUNDS):
        error = math.log(measured_s / _predicted_s(scenario, scaled(exponent)))
        if abs(error) < EXACT:
            break
        exponent = min(max(exponent + error, -MAX_EXPONENT), MAX_EXPONENT)
    calibration = scaled(exponent)
    intervals = _narrow_intervals(calibration.intervals, keys, "moe" if scenario.model.is_moe else "dense")
    calibrated = replace(calibration, intervals=intervals)
    calibrated_s = _predicted_s(scenario, calibrated)
    took, predicted = format_same_decimals(measured_s, model_s)
    says = f"measured {took} s, model {predicted} s, recalibrated"
    if not math.isclose(calibrated_s, measured_s, rel_tol=0.01):
        says += f" as far as its constants' bounds allow: {calibrated_s:.3g} s"
    return replace(workload, calibration=calibrated), Recalibration(
        measured_s=measured_s, model_s=model_s, calibrated_s=calibrated_s, says=says
    )


def _predicted_s(scenario: Scenario, calibration: Calibration) -> float:
    return predict([scenario], calibration)[0].step_time_s


def _time_constants(keys: RowKeys, calibration: Calibration) -> Mapping[str, tuple[float, int]]:
    """The value of each, and whether time grows (1) or shrinks (-1) with it."""
    now = calibration.coefficients(keys)
    signs = {
        definition.name: 1 if definition.name.endswith(SLOWER) else -1
        for definition in definitions()
        if definition.name.endswith((*SLOWER, *FASTER))
    }
    values = {name: float(getattr(now, name)) for name in signs}
    return {name: (value, signs[name]) for name, value in values.items() if value > 0}


def _narrow_intervals(model: IntervalModel, keys: RowKeys, kind: str) -> IntervalModel:
    """As of a stack whose error is that of comparing two plans."""
    label = f"{keys.key('stack', 0)}|{kind}"
    widest = max(abs(bound) for bound in model.quantiles["0"])
    return replace(
        model,
        stacks=sorted({*model.stacks, keys.key("stack", 0)}),
        frameworks=sorted({*model.frameworks, keys.framework[0]}),
        generations=sorted({*model.generations, keys.generation[0]}),
        stack_error={**model.stack_error, label: model.pair_error[kind] / widest},
    )


def measured_workload(
    workload: Workload, plan: Plan, profile: Profile | None, stated_s: float | None = None
) -> tuple[Workload, Recalibration | None]:
    """By the traces' step if they are of this job, else by the step time that notes state."""
    measured_s = stated_s
    if profile is not None and profile.step_time_s and (profile.match is None or profile.match.agrees):
        measured_s = profile.step_time_s
    if not measured_s:
        return workload, None
    return recalibrate(workload, plan, measured_s)


def differing_terms(comparison: PredictionComparison) -> list[str]:
    """Which terms differ although the totals agree; empty if the totals do not."""
    step = comparison.step_time
    if not step.measured_s or abs(step.predicted_s / step.measured_s - 1) > NEAR:
        return []
    return [
        f"{term.term}: measured {term.measured_s:.3g} s, model {term.predicted_s:.3g} s"
        for term in comparison.terms
        if abs(term.predicted_s - term.measured_s) > MIN_TERM_DIFFERENCE * step.measured_s
    ]


def without_slower(proposals: Sequence[Proposal], measured_s: float | None) -> list[Proposal]:
    """No target is slower than what was measured; the first proposal stays if all are."""
    if measured_s is None:
        return list(proposals)
    faster = [
        proposal for proposal in proposals if proposal.prediction.step_time_s <= measured_s * (1 + 1e-6)
    ]
    kept = faster or list(proposals[:1])
    return [proposal.model_copy(update={"rank": rank}) for rank, proposal in enumerate(kept, start=1)]
