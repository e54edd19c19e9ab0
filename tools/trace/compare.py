"""How a traced job compares: with its traces after a change, and with the prediction of its scenario."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Literal, cast

from tools.errors import InputError
from tools.model.calibration import ClusterCalibration
from tools.model.predict import Prediction, predict
from tools.physics.encode import encode
from tools.scenario import Scenario
from tools.scenario.spec import ClosedModel
from tools.trace.alignment import align
from tools.trace.breakdown import Breakdown, BreakdownUs, add_breakdowns
from tools.trace.calibrate import MeasuredCoefficient, measure_coefficients
from tools.trace.parts import StepPart
from tools.trace.rank_profile import RankProfile, mean_parts
from tools.trace.terms import HOST, PIPELINE, measure_terms

MAX_CHANGES = 40
"""Parts that are listed; the others are one line, so that the list adds up."""
MAX_NAME = 100
MAX_KERNELS = 4
_SIDES = (attrgetter("before"), attrgetter("after"))
SAME_COUNT = 0.02
LESS_BYTES = 0.9
"""A message counts as smaller below this share of its size."""
LATE_SHARE = 0.5
"""If less of a collective's growth than this shows on its fastest rank, the others wait for a late one."""
MIN_SHARE = 0.01
"""Kernels that come and go with less of the difference are not taken for a fusion."""
OTHER_PARTS = "(all other parts)"
ChangeCauseName = Literal[
    "kernel_slower",
    "kernel_faster",
    "more_work",
    "less_work",
    "fusion_lost",
    "fusion_gained",
    "smaller_messages",
    "communication_slower",
    "communication_faster",
    "late_ranks",
    "overlap_lost",
    "overlap_gained",
    "synchronisation",
    "launch",
    "waiting",
    "unknown",
]
CHANGE_CAUSES: dict[ChangeCauseName, str] = {
    "kernel_slower": "a kernel takes longer",
    "kernel_faster": "a kernel takes less",
    "more_work": "more work is launched",
    "less_work": "less work is launched",
    "fusion_lost": "a fusion is lost: more kernels do what fewer did",
    "fusion_gained": "a fusion is gained: fewer kernels do what more did",
    "smaller_messages": "the same data goes in more, smaller messages",
    "communication_slower": "a collective takes longer",
    "communication_faster": "a collective takes less",
    "late_ranks": "a collective waits longer for the last rank",
    "overlap_lost": "communication is hidden under less compute",
    "overlap_gained": "communication is hidden under more compute",
    "synchronisation": "the host waits for the device more, then the device for the host",
    "launch": "the host launches later",
    "waiting": "launched work waits for another stream",
    "unknown": "gaps whose launch the trace does not show",
}
_WAITS = ("synchronisation", "launch", "waiting", "unknown")

FAR_RATIO = 1.5
"""Between measured and predicted step: beyond it, that they differ is the finding."""
MIN_TERM_DIFFERENCE = 0.1
"""Share of the step: terms that differ by more are named."""


class TermChange(ClosedModel):
    term: str
    before_us: float
    after_us: float
    change_us: float
    """Negative if time was saved."""
    ratio: float | None


class OverlapChange(ClosedModel):
    before: float | None
    after: float | None


class PartChange(ClosedModel):
    """One place of the step, before and after: the same kind, module, op and shape."""

    kind: str
    module: str
    op: str
    shape: str
    kernels: list[str]
    """Before and after; those of one side only are marked + and -."""
    change: Literal["new", "gone", "more often", "less often", "slower", "faster"]
    before_us: float
    after_us: float
    change_us: float
    before_count: float
    after_count: float

    @property
    def where(self) -> str:
        inside = [text for text in (self.module, self.op, self.shape) if text and [text] != self.kernels]
        kernels = "; ".join(self.kernels[:MAX_KERNELS])
        return f"{', '.join(inside)}: {kernels}" if inside else kernels


class ChangeCause(ClosedModel):
    cause: ChangeCauseName
    change_us: float
    where: str
    summary: str


class TraceChange(ClosedModel):
    """Two folders, before and after a change: means over ranks and steady steps, or over ranks."""

    per: Literal["rank and step", "rank"]
    speedup: float | None
    terms: list[TermChange]
    overlap_ratio: OverlapChange
    change_us: float
    parts: list[PartChange]
    """They add up to it for the ranks whose steps were taken apart; the largest changes first. Empty if a
    side has only summaries of release 0.2."""
    causes: list[ChangeCause]
    """They add up to it too; what explains most is first."""


def compare(before: list[RankProfile], after: list[RankProfile]) -> TraceChange:
    """Compares steady steps if all ranks of both sides mark steps, else whole traces."""
    by_step = all(side and all(profile.steady_steps for profile in side) for side in (before, after))
    mean_before, mean_after = _mean(before, by_step), _mean(after, by_step)
    terms = []
    for name in (name for name in BreakdownUs.model_fields if name.endswith("_us")):
        before_us, after_us = getattr(mean_before, name), getattr(mean_after, name)
        terms.append(
            TermChange(
                term=name.removesuffix("_us"),
                before_us=before_us,
                after_us=after_us,
                change_us=after_us - before_us,
                ratio=after_us / before_us if before_us else None,
            )
        )
    sides = mean_parts(before, by_step), mean_parts(after, by_step)
    parts, causes = compare_parts(*sides) if all(sides) else ([], [])
    return TraceChange(
        per="rank and step" if by_step else "rank",
        speedup=mean_before.total_us / mean_after.total_us if mean_after.total_us else None,
        terms=terms,
        overlap_ratio=OverlapChange(before=mean_before.overlap_ratio, after=mean_after.overlap_ratio),
        change_us=mean_after.total_us - mean_before.total_us,
        parts=parts,
        causes=causes,
    )


def _mean(profiles: list[RankProfile], by_step: bool) -> BreakdownUs:
    """The mean steady step of a rank, or the mean trace."""
    parts = [profile.steady_breakdown if by_step else profile.breakdown for profile in profiles]
    count = sum(len(profile.steady_steps) if by_step else 1 for profile in profiles) or 1
    summed = add_breakdowns(parts)
    mean = Breakdown(**{term.name: round(getattr(summed, term.name) / count) for term in fields(summed)})
    return mean.as_microseconds()


@dataclass(frozen=True)
class _Place:
    """What happens at one place, on both sides."""

    kind: str
    module: str
    op: str
    shape: str
    before: list[StepPart]
    after: list[StepPart]

    def sums(self, name: str) -> tuple[float, float]:
        before, after = (sum(getattr(part, name) for part in side) for side in (self.before, self.after))
        return before, after

    @property
    def change_us(self) -> float:
        before, after = self.sums("own_us")
        return after - before

    @property
    def change(self) -> Literal["new", "gone", "more often", "less often", "slower", "faster"]:
        before, after = self.sums("count")
        if not self.before or not self.after:
            return "gone" if self.before else "new"
        if abs(after - before) > SAME_COUNT * max(before, after):
            return "more often" if after > before else "less often"
        return "slower" if self.change_us > 0 else "faster"

    @property
    def name(self) -> str:
        """The kernel that changed most, and where it is from."""
        own: dict[str, float] = defaultdict(float)
        for side, sign in ((self.before, -1.0), (self.after, 1.0)):
            for part in side:
                own[part.kernel] += sign * part.own_us
        kernel = max(own, key=lambda kernel: abs(own[kernel]))
        inside = [text for text in (self.module, self.op, self.shape) if text and text != kernel]
        return " in ".join([kernel[:MAX_NAME], ", ".join(inside)[:MAX_NAME]][: 2 if inside else 1])

    def report(self) -> PartChange:
        names = {part.kernel for part in self.before}, {part.kernel for part in self.after}
        marked = [
            ("" if name in names[0] & names[1] else "-" if name in names[0] else "+") + name[:MAX_NAME]
            for name in sorted(names[0] | names[1])
        ]
        (before_us, after_us), (before, after) = self.sums("own_us"), self.sums("count")
        return PartChange(
            kind=self.kind,
            module=self.module,
            op=self.op,
            shape=self.shape,
            kernels=marked,
            change=self.change,
            before_us=before_us,
            after_us=after_us,
            change_us=after_us - before_us,
            before_count=before,
            after_count=after,
        )


def compare_parts(
    before: Sequence[StepPart], after: Sequence[StepPart]
) -> tuple[list[PartChange], list[ChangeCause]]:
    """Places matched by module, call stack and shape; and what explains the difference, both adding up."""
    sides: dict[tuple[str, str, str, str], tuple[list[StepPart], list[StepPart]]] = {}
    for number, side in enumerate((before, after)):
        for part in side:
            key = (part.kind, part.module, part.op, part.shape)
            sides.setdefault(key, ([], []))[number].append(part)
    places = [_Place(*key, *both) for key, both in sides.items()]
    places.sort(key=lambda place: -abs(place.change_us))
    reports = [place.report() for place in places[:MAX_CHANGES]]
    if places[MAX_CHANGES:]:
        rest = _Place("", "", "", "", *([p for x in places[MAX_CHANGES:] for p in s(x)] for s in _SIDES))
        reports.append(rest.report().model_copy(update={"op": OTHER_PARTS, "kernels": []}))
    total_us = sum(place.change_us for place in places)
    by_cause: dict[ChangeCauseName, list[_Place]] = defaultdict(list)
    works = [place for place in places if place.kind in ("kernel", "copy")]
    for place in places:
        if place.kind in _WAITS:
            by_cause[cast(ChangeCauseName, place.kind)].append(place)
        elif place.kind == "communication":
            by_cause[_communication_cause(place)].append(place)
    for cause, few in _work_causes(works, total_us).items():
        by_cause[cause] += few
    causes = []
    for cause, few in by_cause.items():
        change_us = sum(place.change_us for place in few)
        first = max(few, key=lambda place: place.change_us * (1 if change_us > 0 else -1))
        summary = f"{CHANGE_CAUSES[cause]}: {change_us / 1000:+,.3f} ms, most of it {first.name}"
        causes.append(ChangeCause(cause=cause, change_us=change_us, where=first.name, summary=summary))
    causes.sort(key=lambda found: -found.change_us * (1 if total_us >= 0 else -1))
    return reports, causes


def _communication_cause(place: _Place) -> ChangeCauseName:
    (before_us, after_us), (before, after) = place.sums("busy_us"), place.sums("count")
    if not before or not after:
        return "more_work" if after else "less_work"
    sizes = [size / count for size, count in zip(place.sums("message_bytes"), (before, after), strict=True)]
    if sizes[0] and sizes[1] < LESS_BYTES * sizes[0] and after > before:
        return "smaller_messages"
    is_more = place.change_us > 0
    # What of the change their own time made, had the same share of it stayed exposed.
    exposed_us, _ = place.sums("own_us")
    longer_us = (after_us - before_us) * exposed_us / before_us
    if abs(place.change_us - longer_us) > abs(longer_us):
        return "overlap_lost" if is_more else "overlap_gained"
    if abs(after - before) > SAME_COUNT * max(before, after):
        return "more_work" if is_more else "less_work"
    least = [min(part.least_us for part in side) for side in (place.before, place.after)]
    grown = abs(after_us / after - before_us / before)
    if is_more and least[1] - least[0] < LATE_SHARE * grown:
        return "late_ranks"
    return "communication_slower" if is_more else "communication_faster"


def _work_causes(works: Sequence[_Place], total_us: float) -> dict[ChangeCauseName, list[_Place]]:
    """Kernels that took the place of others are one cause: a fusion, lost or gained."""
    found: dict[ChangeCauseName, list[_Place]] = defaultdict(list)
    swapped: list[_Place] = []
    gone = come = 0.0
    for place in works:
        names = [{part.kernel for part in side} for side in (place.before, place.after)]
        is_swapped = names[0] != names[1] and place.change not in ("slower", "faster")
        if is_swapped and max(place.sums("own_us")) > MIN_SHARE * abs(total_us):
            swapped.append(place)
            gone += sum(part.count for part in place.before if part.kernel not in names[1])
            come += sum(part.count for part in place.after if part.kernel not in names[0])
        elif place.change in ("slower", "faster"):
            found["kernel_slower" if place.change_us > 0 else "kernel_faster"].append(place)
        else:
            found["more_work" if place.change_us > 0 else "less_work"].append(place)
    if gone and come:
        found["fusion_lost" if come > gone else "fusion_gained"] += swapped
    else:
        found["more_work" if come else "less_work"] += swapped
    return {cause: few for cause, few in found.items() if few}


class TermComparison(ClosedModel):
    term: str
    measured_s: float
    predicted_s: float
    predicted_error_ratio: float | None
    calibrated_s: float
    calibrated_error_ratio: float | None


class PredictionComparison(ClosedModel):
    """The measured step beside the predicted one, before and after calibration by the trace."""

    per: Literal["step", "trace"]
    num_steps: int
    step_time: TermComparison
    terms: list[TermComparison]
    waiting_s: float
    coefficients: list[MeasuredCoefficient]
    notes: list[str]

    @property
    def differing_terms(self) -> list[str]:
        """Which terms differ by more than a tenth of the measured step, those that differ most first."""
        least_s = MIN_TERM_DIFFERENCE * self.step_time.measured_s
        apart = [(abs(term.predicted_s - term.measured_s), term) for term in self.terms]
        return [
            f"{term.term}: measured {term.measured_s:.3g} s, model {term.predicted_s:.3g} s"
            for difference_s, term in sorted(apart, key=lambda each: -each[0])
            if difference_s > least_s > 0
        ]

    @property
    def far_apart(self) -> str | None:
        """The finding, if measurement and model differ so much that one of them is of something else."""
        step = self.step_time
        ratio = step.measured_s / step.predicted_s if step.predicted_s else 1.0
        if 1 / FAR_RATIO <= ratio <= FAR_RATIO:
            return None
        times = f"{ratio:.1f} times the" if ratio > 1 else f"{1 / ratio:.1f} times less than the"
        terms = "; ".join(self.differing_terms) or "no single term explains it"
        return f"the measured step is {times} predicted one, before anything is recalibrated: {terms}"


@dataclass(frozen=True)
class PredictionCheck:
    comparison: PredictionComparison
    calibration: ClusterCalibration


def check_prediction(profiles: list[RankProfile], scenario: Scenario) -> PredictionCheck:
    """Compares a traced job with its scenario's prediction, and calibrates the cost model by the trace."""
    profiles = [profile for profile in profiles if profile.breakdown.total_ns]
    if not profiles:
        raise InputError("folder", "traces without work", "must show at least one step to compare with")
    if scenario.plan is None:
        raise ValueError("a scenario without a plan cannot be predicted")
    measured = measure_terms(profiles, align(profiles), scenario.plan)
    coefficients = measure_coefficients(profiles, measured, scenario)
    _, keys = encode([scenario])
    cluster = ClusterCalibration(
        framework=keys.framework[0],
        generation=keys.generation[0],
        device=keys.device[0],
        coefficients={coefficient.name: coefficient.value for coefficient in coefficients},
    )
    (before,), (after,) = predict([scenario]), predict([scenario], cluster.apply())

    def compared(name: str, measured_s: float, predicted_s: float, calibrated_s: float) -> TermComparison:
        return TermComparison(
            term=name,
            measured_s=measured_s,
            predicted_s=predicted_s,
            predicted_error_ratio=predicted_s / measured_s - 1 if measured_s else None,
            calibrated_s=calibrated_s,
            calibrated_error_ratio=calibrated_s / measured_s - 1 if measured_s else None,
        )

    terms = []
    for name, parts in _predicted_parts("optimizer" in measured.terms_s).items():
        measured_s, predicted_s = measured.terms_s.get(name, 0.0), _sum_s(before, parts)
        if measured_s or predicted_s:
            terms.append(compared(name, measured_s, predicted_s, _sum_s(after, parts)))
    notes, num_devices = [], scenario.cluster.num_devices
    world_size = max(profile.world_size or 0 for profile in profiles)
    if world_size not in (0, num_devices):
        notes.append(f"the traces are of a job of {world_size} ranks, the scenario has {num_devices} devices")
    if not measured.num_steps:
        notes.append("no steps are marked: the whole trace is compared with one predicted step")
    if measured.terms_s.get("other_comm_exposed"):
        notes.append("some collectives fit no axis of the plan: they are under other_comm_exposed")
    if sum(coefficient.is_bounded for coefficient in coefficients) > len(coefficients) / 2:
        notes.append("most constants ended at a bound: is this the scenario of the traced job?")
    comparison = PredictionComparison(
        per="step" if measured.num_steps else "trace",
        num_steps=measured.num_steps,
        step_time=compared("step_time", measured.step_time_s, before.step_time_s, after.step_time_s),
        terms=terms,
        waiting_s=measured.waiting_s,
        coefficients=coefficients,
        notes=notes,
    )
    return PredictionCheck(comparison, cluster)


def _predicted_parts(has_optimizer: bool) -> dict[str, tuple[str, ...]]:
    """The predicted terms that a trace shows as one, by measured term."""
    return {
        "compute": ("compute", "recompute"),
        "memory_bound_ops": ("memory_bound_ops",) if has_optimizer else ("memory_bound_ops", "optimizer"),
        **{f"{axis}_comm_exposed": (f"{axis}_comm_exposed",) for axis in ("tp", "cp", "ep", "dp")},
        "other_comm_exposed": (),
        PIPELINE: ("pp_comm_exposed", "pipeline_bubble"),
        **({"optimizer": ("optimizer",)} if has_optimizer else {}),
        HOST: (HOST,),
    }


def _sum_s(prediction: Prediction, names: tuple[str, ...]) -> float:
    return sum(prediction.breakdown_s[name] for name in names)
