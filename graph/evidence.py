"""Runs that nobody measured here, as evidence of a session: what notes tell, and what cases remember."""

from collections.abc import Mapping, Sequence
from contextlib import suppress

from graph.context import Context
from tools.errors import InfeasibleError, InputError
from tools.kb.entries import Case
from tools.model.calibration import Calibration, shipped_calibration
from tools.model.observations import with_seen
from tools.model.runs import Measured, Run
from tools.model.update import MAX_FACTOR
from tools.recommend.report import Fact
from tools.recommend.score import complete
from tools.scenario import Scenario, parse_scenario
from tools.trials.steering import default_plan


def told_runs(context: Context, scenario: Scenario, facts: Sequence[Fact], tenant: str | None) -> list[Run]:
    """Runs of this job that nobody measured here: what notes tell of other plans, and cases of the knowledge
    base with a plan and an outcome. Fields that they leave open are those of today's plan."""
    told: list[tuple[str, str, Scenario, Mapping[str, object], float | None]] = []
    for fact in facts:
        for value in fact.value if fact.name == "run" and isinstance(fact.value, list) else ():
            if isinstance(value, dict) and isinstance(took_s := value.get("step_time_s"), int | float):
                stated = {name: part for name, part in value.items() if name != "step_time_s"}
                named = " ".join(f"{name} {part}" for name, part in stated.items())
                told.append(("notes", named, scenario, stated, float(took_s)))
    job = (scenario.cluster.device, scenario.cluster.num_devices, scenario.training.framework)
    for entry in context.knowledge.entries(kind="case", tenant=tenant):
        case = entry.body
        if not isinstance(case, Case) or not case.after or entry.is_seed:
            continue
        took = (case.measured or {}).get("step_time_s")
        is_timed = isinstance(took, int | float) and took > 0
        is_here = (case.device, case.num_devices, case.framework) == job
        if is_here and case.model == scenario.model.name and (is_timed or entry.status == "refuted"):
            with suppress(InputError):
                own = parse_scenario({**case.scenario}, need_plan=False) if case.scenario else scenario
                time_s = float(took) if is_timed and isinstance(took, int | float) else None
                told.append(("case", f"case:{entry.id}", own, case.after, time_s))
    runs = []
    for source, id, own, fields, time_s in told:
        with suppress(InputError, InfeasibleError):
            workload = context.workload(own.model_copy(update={"constraints": {}, "notes": None}))
            plan = complete(workload, scenario.plan or default_plan(workload), fields)
            predicted_s = workload.predict([plan])[0].step_time_s
            if time_s is None or 1.0 / MAX_FACTOR < time_s / predicted_s < MAX_FACTOR:
                measured, ran = Measured(step_time_s=time_s), workload.with_plan(plan)
                crashed = time_s is None
                runs.append(Run(scenario=ran, measured=measured, crashed=crashed, id=id, source=source))
    return runs


def knowing(context: Context, runs: Sequence[Run]) -> Calibration:
    """The session's calibration as it is, with these runs beside those that it knows."""
    calibration = context.session_calibration or context.calibration or shipped_calibration()
    known = calibration.seen.runs if calibration.seen else ()
    return with_seen(calibration, [*known, *runs])
