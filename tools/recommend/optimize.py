"""The whole recommendation for a scenario: `asap optimize`'s report, without any language model."""

from collections.abc import Callable
from typing import cast

from tools.cost.calibration import Calibration
from tools.cost.predict import Prediction
from tools.recommend.beyond import beyond_contract
from tools.recommend.choose import choose
from tools.recommend.diagnosis import diagnose, with_lever, with_profile
from tools.recommend.infeasible import infeasible
from tools.recommend.preference import shipped_weights
from tools.recommend.proposal import proposal
from tools.recommend.sensitivity import pareto, sensitivity
from tools.recommend.why_not import rejected
from tools.recommend.words import seconds
from tools.recommend.workload import GIB, Workload
from tools.scenario import Plan, Scenario
from tools.sharding.constraints import parse_constraints
from tools.sharding.search import Found, Search

Report = dict[str, object]
REASONER = "expert-rules"


def workload_of(scenario: Scenario, calibration: Calibration | None = None) -> Workload:
    return Workload.of(scenario, parse_constraints(scenario.constraints, scenario.plan), calibration)


def best_plans(
    workload: Workload, progress: Callable[[float], None] | None = None
) -> tuple[list[Plan], Found]:
    """At most three plans that really differ, best first; raises InfeasibleError where nothing fits."""
    found = Search(workload.scenario, workload.constraints, workload.calibration).run(progress)
    plans = choose(workload.scenario, found.best, workload.capacity_gib * GIB, shipped_weights())
    if not plans:
        raise infeasible(workload)
    return plans, found


def _tell_preference(proposals: list[Report]) -> None:
    """A proposal before a faster one owes a reason."""
    times = [seconds(cast("Prediction", one["prediction"])) for one in proposals]
    for one, own, later in zip(proposals, times, (times[i + 1 :] for i in range(len(times))), strict=True):
        if later and min(later) < own:
            says = (
                f"ranked before a plan that is {1 - min(later) / own:.1%} faster by prediction: inside "
                "the error of a comparison, and published recipes avoid that plan's features"
            )
            evidence = cast("list[dict[str, str]]", one["evidence"])
            evidence.append({"kind": "knowledge", "ref": "calibration/preferences.json", "says": says})
            one["rationale"] = f"{one['rationale']} {says[0].upper()}{says[1:]}."


def optimize(
    scenario: Scenario,
    progress: Callable[[float], None] | None = None,
    calibration: Calibration | None = None,
) -> Report:
    workload = workload_of(scenario, calibration)
    plans, found = best_plans(workload, progress)
    predictions = workload.predict(plans)
    baseline = workload.predict([scenario.plan])[0] if scenario.plan else None
    today = (scenario.plan, baseline) if scenario.plan and baseline else None
    proposals = [
        proposal(workload, rank, plan, prediction, today)
        for rank, (plan, prediction) in enumerate(zip(plans, predictions, strict=True), start=1)
    ]
    _tell_preference(proposals)
    diagnosis = diagnose(workload, baseline or predictions[0])
    if scenario.traces:
        diagnosis = with_profile(diagnosis, scenario.traces)
    return {
        "id": scenario.id,
        "diagnosis": with_lever(diagnosis, proposals, baseline) if baseline else diagnosis,
        "baseline": baseline,
        "proposals": proposals,
        "rejected": rejected(workload, plans[0], predictions[0]),
        "searched": {"plans": found.searched, "timed": found.timed, "seconds": found.seconds},
        "sensitivity": sensitivity(workload, found),
        "beyond_contract": beyond_contract(workload, plans[0], predictions[0]),
        "pareto": pareto(found),
        "reasoner": REASONER,
    }
