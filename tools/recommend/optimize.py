"""The three questions of a recommendation: what limits a plan, which plans are best, how good is one?"""

from collections.abc import Callable
from typing import Any, cast

from tools.cost.calibration import Calibration
from tools.cost.memory import GIB
from tools.cost.predict import Prediction
from tools.recommend.choose import choose, shipped_weights
from tools.recommend.diagnosis import beyond_contract, diagnose, read_profile, with_lever, with_profile
from tools.recommend.proposal import proposal
from tools.recommend.sensitivity import pareto, sensitivity
from tools.recommend.why_not import infeasible, rejected
from tools.recommend.workload import Workload, narrowed
from tools.scenario import Plan, Scenario
from tools.search.constraints import parse_constraints
from tools.search.search import Found, Search

Report = dict[str, Any]
Progress = Callable[[float], None]
REASONER = "expert-rules"


def workload_of(scenario: Scenario, calibration: Calibration | None = None) -> Workload:
    """What a search needs of a scenario; raises InputError for constraints that cannot be."""
    constraints = parse_constraints(scenario.constraints, scenario.plan)
    return Workload.of(scenario, narrowed(scenario, constraints), calibration)


def best_plans(workload: Workload, progress: Progress | None = None) -> tuple[list[Plan], Found]:
    """At most three plans that really differ, best first; raises InfeasibleError where nothing fits."""
    found = Search(workload.scenario, workload.constraints, workload.calibration).run(progress)
    plans = choose(workload.scenario, found.best, workload.capacity_gib * GIB, shipped_weights())
    if not plans:
        raise infeasible(workload, progress)
    return plans, found


def analyse(workload: Workload, plan: Plan, profile: Report | None = None) -> tuple[Prediction, Report]:
    """The plan's prediction and what limits it; `profile` is what `read_profile` says of its traces."""
    prediction = workload.predict([plan])[0]
    diagnosis = diagnose(workload, prediction)
    return prediction, with_profile(diagnosis, profile, prediction) if profile else diagnosis


def propose(workload: Workload, progress: Progress | None = None) -> Report:
    """The best plans of every legal one, why not others, and what would change the answer."""
    plans, found = best_plans(workload, progress)
    predictions, today = workload.predict(plans), workload.today()
    proposals = [
        proposal(workload, rank, plan, prediction, today)
        for rank, (plan, prediction) in enumerate(zip(plans, predictions, strict=True), start=1)
    ]
    _tell_preference(proposals)
    return {
        "proposals": proposals,
        "rejected": rejected(workload, plans[0], predictions[0]),
        "searched": {"plans": found.searched, "timed": found.timed, "seconds": found.seconds},
        "sensitivity": sensitivity(workload, found),
        "beyond_contract": beyond_contract(workload, plans[0], predictions[0]),
        "pareto": pareto(found),
    }


def optimize(
    scenario: Scenario, progress: Progress | None = None, calibration: Calibration | None = None
) -> Report:
    """Every legal plan searched, by rules alone; raises InfeasibleError where nothing fits.

    `proposals` are at most three, best first, each with `plan`, `prediction`, `speedup` and `rationale`;
    `rejected` are notable others with what speaks against them, `pareto` the fastest for each memory.
    `baseline` predicts today's plan, where the scenario has one, and `diagnosis` says what limits it.
    `sensitivity` and `beyond_contract` say what would change the answer, `searched` how many plans were
    decided; `id` is the scenario's, `reasoner` who reasoned. `progress` is told the share done, from 0 to 1.
    """
    workload = workload_of(scenario, calibration)
    profile = read_profile(scenario.traces)["diagnosis"] if scenario.traces else None
    found = propose(workload, progress)
    proposals = cast("list[Report]", found["proposals"])
    plan = scenario.plan or Plan.model_validate(proposals[0]["plan"])
    prediction, diagnosis = analyse(workload, plan, profile)
    return {
        "id": scenario.id,
        "diagnosis": with_lever(diagnosis, proposals, prediction) if scenario.plan else diagnosis,
        "baseline": prediction.model_dump() if scenario.plan else None,
        **found,
        "reasoner": REASONER,
    }


def _tell_preference(proposals: list[Report]) -> None:
    """A proposal before a faster one owes a reason."""
    times = [float(one["prediction"]["step_time_s"]) for one in proposals]
    for one, own, later in zip(proposals, times, (times[i + 1 :] for i in range(len(times))), strict=True):
        if later and min(later) < own:
            says = (
                f"ranked before a plan that is {1 - min(later) / own:.1%} faster by prediction: inside "
                "the error of a comparison, and published recipes avoid that plan's features"
            )
            evidence = cast("list[dict[str, str]]", one["evidence"])
            evidence.append({"kind": "knowledge", "ref": "calibration/preferences.json", "says": says})
            one["rationale"] = f"{one['rationale']} {says[0].upper()}{says[1:]}."
