"""A job beside a measured run: every setting that differs, with what the cost model says it is worth.

Runs differ in model, batch and devices too, so speed is model FLOP/s per device, as people quote it.
"""

import math
from collections.abc import Sequence

from tools.errors import InputError
from tools.model.calibration import shipped_calibration
from tools.model.near import LISTED, Difference, differences, nearest_runs
from tools.model.predict import Prediction, predict
from tools.model.runs import Run
from tools.names import nearest
from tools.recommend.optimize import workload_of
from tools.recommend.score import complete
from tools.scenario import Plan, PlanColumns, PlanFacts, Scenario, check_plan
from tools.scenario.spec import ClosedModel, ClusterSpec, TrainingSpec

NEAR = "near"
ALIKE = 0.05
"""Runs this much further away than the nearest are as like: the fastest of them is what others reach."""
MAX_ALIKE = 20
FOLLOWING = ("dp", "dp_shard")
"""They follow from the devices and the other degrees; the schedule follows from vpp."""
COMPARED = (*LISTED, "etp", "sequence_parallel", "schedule", "recompute_modules", "recompute_layers")
WITH_DEVICE = ("device", "devices_per_node", "overrides", "topology")
NOTHING = 0.0005
"""A price below this is none."""


class PricedSetting(ClosedModel):
    """What one setting, or several that are legal only together, would change if taken from the run."""

    differences: tuple[Difference, ...]
    ratio: float
    """Speed with it over speed without."""
    term: str
    """The part of the step that changes most."""
    memory_gib: float
    """More or less of it at the peak."""
    fits: bool

    def __str__(self) -> str:
        what = ", ".join(f"{entry.field} {entry.yours} -> {entry.theirs}" for entry in self.differences)
        lacking = "" if self.fits else ", does not fit by itself"
        return f"{what}: {self.ratio - 1:+.1%} ({self.term}; {self.memory_gib:+.1f} GiB{lacking})"


class RunComparison(ClosedModel):
    """Speeds are model TFLOP/s per device. Predicted ratios are by the formulas alone."""

    run: str
    title: str
    source: str
    tflops: float
    """The job's own: as measured, or else predicted."""
    is_measured: bool
    run_tflops: float
    """As measured."""
    settings: list[PricedSetting]
    """What costs the job most is first; what is in its favour comes last."""
    unpriced: list[Difference]
    """Differences that the cost model has no price for, or none alone."""
    interaction: float
    """What all differences together are predicted to do, over the product of the single prices."""
    predicted_ratio: float
    """All differences together."""
    remainder: float
    """The gap over the predicted one: what no setting explains."""
    unknown: list[str]
    """What the remainder may be, and the model cannot say."""

    @property
    def ratio(self) -> float:
        return self.run_tflops / self.tflops

    @property
    def summary(self) -> list[str]:
        """The answer first: who is faster, then what it is from, the largest part first."""
        whose = "measured" if self.is_measured else "predicted"
        left = f"left over: {self.remainder:.2f} times; the model cannot say: {'; '.join(self.unknown)}"
        costly = [setting for setting in self.settings if setting.ratio > 1]
        parts = [(setting.ratio, str(setting)) for setting in costly] + [(self.remainder, left)]
        favourable = [str(setting) for setting in self.settings if setting.ratio <= 1]
        unpriced = [f"{entry.field} {entry.yours} -> {entry.theirs}" for entry in self.unpriced]
        return [
            f"{self.tflops:,.4g} TFLOP/s per device {whose}, {self.run_tflops:,.4g} in {self.title} "
            f"({self.source}): {self.ratio:.2f} times as fast",
            *(text for _, text in sorted(parts, key=lambda part: -part[0])),
            f"together: {self.predicted_ratio:.2f} times predicted, {self.interaction - 1:+.1%} of it as "
            "settings act on each other",
            *([f"in your favour: {'; '.join(favourable)}"] if favourable else []),
            *([f"no price of their own: {'; '.join(unpriced)}"] if unpriced else []),
        ]


def choose_run(scenario: Scenario, runs: Sequence[Run], wanted: str) -> Run:
    """By its id, or the fastest of those most like the scenario."""
    if wanted != NEAR:
        found = next((run for run in runs if run.id == wanted), None)
        if found is None or not (found.measured.step_time_s and found.scenario.plan):
            close = nearest(wanted, [run.id for run in runs if run.measured.step_time_s])
            rule = f"the id of a run with a step time, or {NEAR}"
            raise InputError(
                "against", wanted, f"{rule}; did you mean {' or '.join(close)}?" if close else rule
            )
        return found
    near = nearest_runs(scenario, runs, MAX_ALIKE)
    if not near:
        raise InputError("against", wanted, "no run with a step time is known")
    alike = [other for other in near if other.distance <= near[0].distance + ALIKE]
    return max(alike, key=lambda other: other.tflops_per_device).run


def compare_with_run(scenario: Scenario, run: Run, measured_step_s: float | None = None) -> RunComparison:
    """Changes one setting at a time from the scenario's to the run's; what remains of the gap is named."""
    theirs, run_step_s = run.scenario, run.measured.step_time_s
    if scenario.plan is None or theirs.plan is None or run_step_s is None:
        raise InputError("plan", None, "needed: prices are of a plan beside a measured one")
    found = differences(theirs, scenario, COMPARED)
    following = {*FOLLOWING, "schedule"} if "vpp" in {entry.field for entry in found} else {*FOLLOWING}
    differing = [entry for entry in found if entry.field not in following]
    trials: list[tuple[tuple[Difference, ...], Scenario, Scenario]] = []
    """What is changed, without it and with it."""
    stuck: list[Difference] = []
    for entry in differing:
        if pair := _pair(scenario, theirs, [entry]):
            trials.append(((entry,), *pair))
        else:
            stuck.append(entry)
    if stuck and (pair := _pair(scenario, theirs, stuck)):
        trials.append((tuple(stuck), *pair))
        stuck = []
    rows = [scenario, theirs, *(side for _, before, after in trials for side in (before, after))]
    mine, other, *sides = predict(rows, shipped_calibration().formulas)
    settings, unpriced = [], stuck
    for (changed, _, _), before, after in zip(trials, sides[::2], sides[1::2], strict=True):
        ratio = after.model_tflops_per_device / before.model_tflops_per_device
        if abs(ratio - 1) < NOTHING:
            unpriced += [entry for entry in changed if entry.is_stated]
        else:
            memory_gib = after.peak_memory_gib - before.peak_memory_gib
            settings.append(
                PricedSetting(
                    differences=changed,
                    ratio=ratio,
                    term=_changed_term(before, after),
                    memory_gib=memory_gib,
                    fits=after.fits,
                )
            )
    settings.sort(key=lambda setting: -setting.ratio)
    tflops = mine.model_tflops_per_device
    if measured_step_s:
        tflops *= mine.step_time_s / measured_step_s
    run_tflops = other.model_tflops_per_device * other.step_time_s / run_step_s
    predicted = other.model_tflops_per_device / mine.model_tflops_per_device
    return RunComparison(
        run=run.id,
        title=run.title,
        source=run.source,
        tflops=tflops,
        is_measured=measured_step_s is not None,
        run_tflops=run_tflops,
        settings=settings,
        unpriced=unpriced,
        interaction=predicted / math.prod(setting.ratio for setting in settings),
        predicted_ratio=predicted,
        remainder=run_tflops / tflops / predicted,
        unknown=_unknown(scenario, theirs),
    )


def _pair(
    mine: Scenario, theirs: Scenario, changed: Sequence[Difference]
) -> tuple[Scenario, Scenario] | None:
    """Without and with the change: of the scenario, or of the run if only there it is legal."""
    names = {entry.field for entry in changed}
    try:
        return mine, _changed(mine, theirs, names)
    except InputError:
        try:
            return _changed(theirs, mine, names), theirs
        except InputError:
            return None


def _changed(start: Scenario, other: Scenario, names: set[str]) -> Scenario:
    """The scenario with the settings of another; data-parallel ranks follow. Raises InputError if illegal."""
    if "device" in names:
        names = names | set(WITH_DEVICE)

    def taken(source: ClusterSpec | TrainingSpec | Plan) -> dict[str, object]:
        return {name: getattr(source, name) for name in names & type(source).model_fields.keys()}

    if start.plan is None or other.plan is None:
        raise InputError("plan", None, "needed")
    cluster = start.cluster.model_copy(update=taken(other.cluster))
    if "num_devices" in names and "device" not in names:
        cluster = cluster.model_copy(update={"topology": None})
    changed = start.model_copy(
        update={
            "model": other.model if "model" in names else start.model,
            "cluster": cluster,
            "training": start.training.model_copy(update=taken(other.training)),
            "constraints": {},
        }
    )
    plan = complete(workload_of(changed), start.plan, taken(other.plan))
    check_plan(PlanFacts(changed.model, changed.cluster, changed.training, PlanColumns.of([plan])))
    return changed.model_copy(update={"plan": plan})


def _changed_term(before: Prediction, after: Prediction) -> str:
    """By shares of the steps: the steps themselves may do different work."""
    scale = before.step_time_s * before.model_tflops_per_device / after.model_tflops_per_device
    apart = {
        name: after.breakdown_s[name] / after.step_time_s * scale - seconds
        for name, seconds in before.breakdown_s.items()
    }
    return max(apart, key=lambda name: abs(apart[name]))


def _unknown(mine: Scenario, theirs: Scenario) -> list[str]:
    unknown = [
        "fabric: its tuning, its rails and who else uses it",
        "clocks: power caps, throttling, other jobs (asap probe --preflight)",
        "data: loading, checkpoints and logging inside the step",
    ]
    if mine.model.is_moe:
        unknown.insert(2, "routing: how evenly tokens spread over experts")
    if mine.training.software_date != theirs.training.software_date:
        unknown.append("software: versions that only one side states")
    return unknown
