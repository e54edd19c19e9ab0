"""What speaks against rows of runs before anybody learns from them: schema, legality, physical limits,
figures that contradict one another, units, batch, degrees, duplicates.

Hard limits come first, since they need no judgement: no step is faster than its arithmetic at the device's
peak, no peak is above the device's memory. The cost model is a witness beside them, and a fair one only
against rows that were measured alike: the median of what the same source's other rows are off by is taken
from a row's own error, and the bounds are as wide as those rows scatter. The bounds were chosen on one half
of the published sources and are judged on the other half by `python -m benchmarks runs_check`; but two of
them were widened, and the rule of duplicates changed, after the judged half had been seen, and the limits of
MFU come from all rows: rows kept apart will tell.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import median
from typing import Literal

import numpy as np
from pydantic import JsonValue

from tools.errors import InputError
from tools.model.calibration import shipped_calibration
from tools.model.checks import LORA_SHARE
from tools.model.predict import Prediction, predict
from tools.model.runs import Run, parse_run
from tools.names import did_you_mean
from tools.physics.encode import scenario_device
from tools.physics.memory import GIB
from tools.scenario import PlanColumns, PlanFacts, Scenario, legal_mask, practice_for
from tools.scenario.fields import get_object
from tools.scenario.rules import numbers_of

Severity = Literal["error", "warning"]

RATE_TOLERANCE = 0.03
"""Between a step time and a throughput that follows from it: both are rounded."""
FLOPS_FACTOR = 2.0
"""Between stated and counted FLOP/s: sources count attention, recomputation and experts differently."""
MAX_MFU = 0.8
"""Above it a share of the peak is suspicious; the best published runs reach 0.7."""
MIN_MFU = 0.002
MAX_MEMORY_SHARE = 1.02
"""The share of a device's memory that is no error: catalogue and driver round differently."""
MEMORY_FACTOR = 4.0
"""Between a measured and a predicted peak."""
MAX_STEP_TOKENS = 300e6
"""The largest batches that anybody trained with have a third of that."""
MIN_SEQ_LEN = 128
MIN_CONTEXT_TOKENS = 1024
"""Tokens of a sequence on a rank: nobody splits further."""
MAX_SLOWER, MAX_FASTER = math.log(2.0), math.log(1.45)
"""The ratio of a measured step to the predicted one, beside what its siblings are off by."""
SCATTERS = 3.0
"""Median deviations of the siblings by which the bounds are wider."""
MIN_SIBLINGS = 4
SWEEP_SHARE = 0.2
"""The share of a source's rows that makes something unusual a choice: it was done on purpose."""
ALONE = math.log(1.5)
"""By how much wider the upper bound is of a row without siblings: some stacks take twice the time."""
LIKELIER_IF_SLOWER, LIKELIER_IF_FASTER = math.log(2.0), math.log(1.25)
"""By how much nearer the measured time another order of the degrees must be: slow runs have many causes."""
DOUBTFUL = math.log(1.2)
"""Off by that much, other orders of the degrees are tried."""
DUPLICATE, NEARLY = 0.005, 0.01
"""Differences of step times: the same figure rounded, and one that may be a second run."""
DEGREES = ("tp", "pp", "cp", "dp")
PRACTICE_FIELDS = tuple(f"plan.{name}" for name in (*DEGREES, "ep"))
TIME_UNITS = {1e3: "milliseconds", 1e6: "microseconds", 1 / 60: "minutes", 1 / 3600: "hours"}
MEMORY_UNITS = {1024.0: "MiB", 1024.0**2: "KiB", 1024.0**3: "bytes", 1 / 1024: "TiB"}
UNIT_SLACK = math.log(1.6)
MEMORY_SLACK = math.log(4.0)
"""Within which a factor is that of a unit; peaks are predicted less well than times."""


@dataclass(frozen=True)
class RowFinding:
    """One thing that speaks against a row, at the path of the field that is likeliest wrong."""

    field: str
    severity: Severity
    message: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.field}: {self.message}"


@dataclass
class CheckedRow:
    """A row, the run that it is unless it cannot be read, and what was found."""

    id: str
    run: Run | None
    stated_tflops: float | None = None
    """Per device, as the source counts them."""
    prediction: Prediction | None = None
    findings: list[RowFinding] = field(default_factory=list)

    @property
    def is_refused(self) -> bool:
        return any(finding.severity == "error" for finding in self.findings)

    @property
    def log_error(self) -> float | None:
        """The measured step over the predicted one."""
        step_s = self.run.measured.step_time_s if self.run else None
        return math.log(step_s / self.prediction.step_time_s) if step_s and self.prediction else None

    def add(self, path: str, severity: Severity, message: str) -> None:
        if all(finding.field != path for finding in self.findings):
            self.findings.append(RowFinding(path, severity, message))


def check_rows(rows: Sequence[JsonValue], known: Sequence[Run] = ()) -> list[CheckedRow]:
    """Each row with its findings, in order. `known` runs are those that a row may repeat, and siblings of
    rows that have their source; a row that has the id and the source of a known run is that run, as it was or
    corrected, and no duplicate of it."""
    checked = [_parse(row) for row in rows]
    ran = [row for row in checked if row.run and row.run.scenario.plan and not row.run.crashed]
    for row, prediction in zip(ran, _by_formulas([row.run.scenario for row in ran if row.run]), strict=True):
        row.prediction = prediction
    unusual = [list(_unusual(row.run.scenario)) if row.run else [] for row in ran]
    often = Counter(
        (row.run.source, finding.field)
        for row, found in zip(ran, unusual, strict=True)
        for finding in found
        if row.run
    )
    rows_of = Counter(row.run.source for row in ran if row.run)
    for row, found, siblings in zip(ran, unusual, _siblings(ran, known), strict=True):
        if row.run and row.prediction:
            _check_limits(row, row.run, row.prediction)
            source, most = row.run.source, max(SWEEP_SHARE * rows_of[row.run.source], MIN_SIBLINGS)
            row.findings += [finding for finding in found if often[source, finding.field] <= most]
            _check_time(row, row.run, siblings)
    _check_duplicates(checked, known)
    return checked


def _parse(data: JsonValue) -> CheckedRow:
    stated = data if isinstance(data, dict) else {}
    row = CheckedRow("" if stated.get("id") is None else str(stated["id"])[:200], None)
    try:
        try:
            row.run = parse_run(data)
        except InputError:
            if stated.get("crashed") is not True:
                raise
            row.run = parse_run(data, published=True)  # an illegal plan is a reason to crash
        measured = stated.get("measured")
        tflops = measured.get("model_tflops_per_device") if isinstance(measured, dict) else None
        row.stated_tflops = float(tflops) if isinstance(tflops, int | float) else None
        for name in stated.keys() - Run.model_fields.keys():
            row.add(name, "warning", f"unknown field, {did_you_mean(name, Run.model_fields)}")
        if row.run.measured.tokens_per_s_per_device and row.run.measured.step_time_s is None:
            row.add("measured.step_time_s", "error", "is missing; tokens_per_s_per_device alone is no time")
    except InputError as error:
        swapped = _legal_order(data) if "plan." in error.path else ""
        row.add(error.path, "error", f"got {error.given!r:.80}; {error.rule}{swapped}")
    return row


def _by_formulas(scenarios: Sequence[Scenario]) -> list[Prediction]:
    """The residual may know the very row that is checked."""
    return predict(scenarios, shipped_calibration().formulas)


def _legal_order(data: JsonValue) -> str:
    """Which two degrees, exchanged, would make a plan legal that is not."""
    row = get_object(data, "run")
    scenario = get_object(row.get("scenario"), "scenario")
    plan = get_object(scenario.get("plan"), "plan")
    for a, b in combinations((*DEGREES, "ep"), 2):
        if a in plan and b in plan and plan[a] != plan[b]:
            changed = {**plan, a: plan[b], b: plan[a]}
            try:
                parse_run({**row, "scenario": {**scenario, "plan": changed}})
            except InputError:
                continue
            return f"; legal with {a} {changed[a]} and {b} {changed[b]}: are they swapped?"
    return ""


def _check_limits(row: CheckedRow, run: Run, p: Prediction) -> None:
    """What no training run can do, and what none was ever seen to do."""
    scenario, measured = run.scenario, run.measured
    training, devices = scenario.training, scenario.cluster.num_devices
    device = scenario_device(scenario.cluster)
    tokens = training.global_batch_size * training.seq_len
    if tokens > MAX_STEP_TOKENS:
        message = f"{training.global_batch_size:,} sequences of {training.seq_len:,} are {tokens:.2g} tokens"
        if training.global_batch_size % training.seq_len == 0:
            message += f"; {training.global_batch_size // training.seq_len:,} sequences, if it counts tokens"
        row.add("scenario.training.global_batch_size", "error", message)
    if training.seq_len < MIN_SEQ_LEN < training.global_batch_size:
        message = (
            f"{training.seq_len} tokens, in a batch of {training.global_batch_size:,}: are they swapped?"
        )
        row.add("scenario.training.seq_len", "warning", message)
    if measured.step_time_s:
        mfu = p.mfu * p.step_time_s / measured.step_time_s * (LORA_SHARE if training.lora else 1.0)
        rate = tokens / measured.step_time_s / devices
        printed = measured.tokens_per_s_per_device
        if printed and abs(rate / printed - 1) > RATE_TOLERANCE:
            _contradicting_rate(row, run, p, rate, printed)
        counted = p.model_tflops_per_device * p.step_time_s / measured.step_time_s
        if row.stated_tflops and not 1 / FLOPS_FACTOR < row.stated_tflops / counted < FLOPS_FACTOR:
            message = f"{row.stated_tflops:.4g}, though the step time means {counted:.4g} TFLOP/s per device"
            row.add("measured.model_tflops_per_device", "warning", message)
        if mfu > MAX_MFU:
            message = f"a step of {measured.step_time_s:.4g} s would use {mfu:.2g} of the device's peak"
            row.add("measured.step_time_s", "error" if mfu > 1 else "warning", message)
        elif mfu < MIN_MFU:
            unit = _unit(row.log_error, TIME_UNITS)
            message = f"a step of {measured.step_time_s:.4g} s would use {mfu:.2%} of the device's peak{unit}"
            row.add("measured.step_time_s", "error" if unit else "warning", message)
        _check_links(row, scenario, p, measured.step_time_s)
    if peak := measured.peak_memory_gib:
        capacity = device.memory_bytes / GIB
        unit = _unit(math.log(peak / p.peak_memory_gib), MEMORY_UNITS, MEMORY_SLACK)
        if peak > capacity * MAX_MEMORY_SHARE:
            message = f"{peak:.4g} GiB of a device that has {capacity:.4g}{unit}"
            row.add("measured.peak_memory_gib", "error", message)
        elif peak < p.memory_gib["parameters"] / 2:
            message = f"{peak:.4g} GiB do not hold the weights, {p.memory_gib['parameters']:.3g} GiB{unit}"
            row.add("measured.peak_memory_gib", "error", message)
        elif not 1 / MEMORY_FACTOR < peak / p.peak_memory_gib < MEMORY_FACTOR:
            message = f"{peak:.4g} GiB, predicted {p.peak_memory_gib:.4g}{unit}"
            row.add("measured.peak_memory_gib", "warning", message)


def _contradicting_rate(row: CheckedRow, run: Run, p: Prediction, rate: float, stated: float) -> None:
    """Throughput and step time say different things: the cost model tells which of the fields is wrong."""
    training, factor = run.scenario.training, stated / rate
    far_s, far_rate = abs(row.log_error or 0.0), abs(math.log(stated / p.tokens_per_s_per_device))
    both = f"tokens_per_s_per_device {stated:.6g}, but the step time and the batch mean {rate:.6g}"
    if far_s <= far_rate and far_s < MAX_SLOWER:
        row.add("measured.tokens_per_s_per_device", "error", f"{both}: {factor:.4g} times as much")
    elif unit := _unit(math.log(factor), TIME_UNITS):
        row.add("measured.step_time_s", "error", both + unit)
    else:
        likely = training.global_batch_size * factor
        is_tokens = math.isclose(factor * training.seq_len, 1.0, rel_tol=RATE_TOLERANCE)
        tokens = ": is it in tokens?" if is_tokens else ""
        message = f"{both}; they agree for a batch of {likely:,.4g} sequences{tokens}"
        row.add("scenario.training.global_batch_size", "error", message)


def _check_links(row: CheckedRow, scenario: Scenario, p: Prediction, step_s: float) -> None:
    """Gradients leave a device once a step at least, in one byte each, over no more than its fastest link."""
    plan, device = scenario.plan, scenario_device(scenario.cluster)
    if plan is None or plan.data_ranks == 1 or scenario.training.lora:
        return
    moved = p.parameters / (plan.tp * plan.pp * plan.ep) * (plan.data_ranks - 1) / plan.data_ranks
    least_s = moved / max(device.intra_node_bytes_per_s, device.inter_node_bytes_per_s)
    if step_s < least_s:
        message = f"{step_s:.4g} s, but the gradients alone need {least_s:.3g} s on the fastest link"
        row.add("measured.step_time_s", "error", message)


def _unusual(scenario: Scenario) -> Iterator[RowFinding]:
    """What is legal and nobody runs, in the fields that are easily swapped."""
    plan, training = scenario.plan, scenario.training
    if plan is None:
        return
    if plan.sequence_parallel and plan.tp == 1:
        message = "true with tp 1, where it has no effect: is tp another degree?"
        yield RowFinding("scenario.plan.sequence_parallel", "warning", message)
    if plan.cp > 1 and training.seq_len < MIN_CONTEXT_TOKENS * plan.cp:
        message = f"{plan.cp} ranks for a sequence of {training.seq_len:,} tokens: is it another degree?"
        yield RowFinding("scenario.plan.cp", "warning", message)
    facts = PlanFacts(scenario.model, scenario.cluster, training, PlanColumns.of([plan]))
    for rule in practice_for(training.framework):
        if rule.field in PRACTICE_FIELDS and bool(np.any(rule.breaks(facts))):
            message = f"{rule.reason.format_map(numbers_of(facts))}: is it another degree?"
            yield RowFinding(f"scenario.{rule.field}", "warning", message)


@dataclass(frozen=True)
class Siblings:
    """By what the other rows of a source on this device and framework are off, and how they scatter."""

    middle: float
    scatter: float | None
    """None: there are too few."""


def _siblings(rows: Sequence[CheckedRow], known: Sequence[Run]) -> list[Siblings]:
    def group(run: Run) -> tuple[str, str, str]:
        return run.source, run.scenario.training.framework, run.scenario.cluster.device

    groups: defaultdict[tuple[str, str, str], dict[str, float]] = defaultdict(dict)
    wanted = {group(row.run) for row in rows if row.run}
    timed = [run for run in known if run.measured.step_time_s and run.scenario.plan and group(run) in wanted]
    for run, prediction in zip(timed, _by_formulas([run.scenario for run in timed]), strict=True):
        groups[group(run)][run.id] = math.log((run.measured.step_time_s or 0.0) / prediction.step_time_s)
    for number, row in enumerate(rows):
        if row.run and row.log_error is not None:
            groups[group(row.run)].setdefault(row.id or f"row {number}", row.log_error)
    found = []
    for number, row in enumerate(rows):
        own = row.id or f"row {number}"
        errors = [error for id, error in groups[group(row.run)].items() if id != own] if row.run else []
        middle = median(errors) if len(errors) >= MIN_SIBLINGS else 0.0
        scatter = median(abs(error - middle) for error in errors) if len(errors) >= MIN_SIBLINGS else None
        found.append(Siblings(middle, scatter))
    return found


def _check_time(row: CheckedRow, run: Run, siblings: Siblings) -> None:
    """The measured step beside the predicted one: a unit, another batch or other degrees explain it best."""
    if row.log_error is None or row.prediction is None or run.measured.step_time_s is None:
        return
    off, slack = row.log_error - siblings.middle, SCATTERS * (siblings.scatter or 0.0)
    alone = ALONE if siblings.scatter is None else 0.0
    is_far = not -MAX_FASTER - slack <= off <= MAX_SLOWER + slack + alone
    if not is_far and abs(off) < DOUBTFUL and row.prediction.fits:
        return
    if order := _likelier_order(run, row.prediction, off, siblings.middle):
        row.add("scenario.plan", "warning", order)
    elif is_far:
        seconds, expected = run.measured.step_time_s, row.prediction.step_time_s * math.exp(siblings.middle)
        message = f"{seconds:.4g} s is {math.exp(off):.3g} times the {expected:.4g} s expected"
        unit = _unit(off, TIME_UNITS)
        if unit:
            row.add("measured.step_time_s", "error", message + unit)
        elif batch := _batch(off, run.scenario):
            row.add("scenario.training.global_batch_size", "warning", f"{message}: {batch}")
        else:
            row.add("measured.step_time_s", "warning", message)


def _unit(off: float | None, units: Mapping[float, str], slack: float = UNIT_SLACK) -> str:
    """Names the unit that explains a factor, given as its logarithm."""
    if off is None:
        return ""
    near = min(units, key=lambda factor: abs(off - math.log(factor)))
    return f": is it in {units[near]}?" if abs(off - math.log(near)) < slack else ""


def _batch(off: float, scenario: Scenario) -> str:
    """Which batch explains that a step takes `exp(off)` times as long as one of the stated batch."""
    training, plan = scenario.training, scenario.plan
    ranks = plan.dp if plan else 1
    micro = max(training.global_batch_size // (plan.micro_batch_size * plan.dp), 1) if plan else 1
    batches = {
        1 / training.seq_len: "is the batch in tokens instead of sequences?",
        float(ranks): "is the batch that of one data-parallel rank?",
        float(scenario.cluster.num_devices): "is the batch that of one device?",
        float(scenario.cluster.devices_per_node): "is the batch that of one node?",
        1 / micro: "is only one micro-batch a step measured?",
        2.0: "is the batch twice as large?",
        0.5: "is the batch half as large?",
    }
    likely = {factor: words for factor, words in batches.items() if factor != 1.0}
    near = min(likely, key=lambda factor: abs(off - math.log(factor)))
    return likely[near] if abs(off - math.log(near)) < DOUBTFUL else ""


def _likelier_order(run: Run, p: Prediction, off: float, middle: float) -> str:
    """Another order of the degrees that explains the measured time, and the fit, much better."""
    plan, step_s = run.scenario.plan, run.measured.step_time_s
    if plan is None or step_s is None:
        return ""
    plans = {}
    for a, b in combinations(DEGREES, 2):
        values = {a: getattr(plan, b), b: getattr(plan, a)}
        if values[a] != values[b]:
            other = plan.model_copy(update=values)
            plans[f"{a} {values[a]} and {b} {values[b]}"] = other.sharded_like(plan)
    workload = (run.scenario.model, run.scenario.cluster, run.scenario.training)
    orders = {
        name: run.scenario.model_copy(update={"plan": other})
        for name, other in plans.items()
        if bool(np.all(legal_mask(PlanFacts(*workload, PlanColumns.of([other])))))
    }
    orders = {name: scenario for name, scenario in orders.items() if not any(_unusual(scenario))}
    predictions = zip(orders, _by_formulas(list(orders.values())), strict=True)
    fitting = [(abs(math.log(step_s / q.step_time_s) - middle), name) for name, q in predictions if q.fits]
    if not fitting:
        return ""
    left, name = min(fitting)
    nearer = abs(off) - left
    if left < DOUBTFUL and nearer > (LIKELIER_IF_SLOWER if off > 0 else LIKELIER_IF_FASTER):
        return f"with {name} the predicted time is {math.exp(nearer):.2g} times nearer: are they swapped?"
    if left < DOUBTFUL and p.fit_probability < 0.02:
        return f"needs {p.peak_memory_gib:.3g} GiB and does not fit; with {name} it does: are they swapped?"
    return ""


def _check_duplicates(checked: Sequence[CheckedRow], known: Sequence[Run]) -> None:
    """The same scenario with a near-equal time under another id, and an id that stands for two rows."""
    by_id = {run.id: run for run in known if run.id}
    same: defaultdict[str, list[Run]] = defaultdict(list)
    for run in known:
        same[what_ran(run)].append(run)
    seen: set[str] = set()
    for row in checked:
        if row.run is None:
            continue
        key, itself = what_ran(row.run), by_id.get(row.id)
        if row.id in seen:
            row.add("id", "error", f"{row.id!r} stands in this file twice")
        elif itself and not (what_ran(itself) == key and _difference(itself, row.run) < DUPLICATE):
            change = "another scenario" if what_ran(itself) != key else "another result"
            if itself.source == row.run.source:
                row.add("id", "warning", f"corrects the known run {row.id!r}, which has {change}")
            else:
                row.add("id", "error", f"{row.id!r} is a run of {itself.source} with {change}")
        for other in () if itself else same[key]:
            difference = _difference(other, row.run)
            if difference < NEARLY and not _are_of_two_releases(other, row.run):
                severity: Severity = "error" if difference < DUPLICATE else "warning"
                row.add("id", severity, f"the scenario and the time of {other.title!r} ({other.source})")
        if row.id:
            seen.add(row.id)
        same[key].append(row.run)


def _are_of_two_releases(one: Run, other: Run) -> bool:
    """A source that measures a plan again for its next release may print the same figure."""
    return one.source == other.source and bool(one.release and other.release) and one.release != other.release


def what_ran(run: Run) -> str:
    """Everything that decides how long a step takes; names do not."""
    return run.scenario.model_dump_json(
        exclude={"model": {"name"}, "cluster": {"name"}, "id": True, "notes": True}, exclude_none=True
    )


def _difference(a: Run, b: Run) -> float:
    """Compares step times; crashes are alike, and unlike what ran."""
    if a.crashed or b.crashed:
        return 0.0 if a.crashed and b.crashed else math.inf
    one, other = a.measured.step_time_s, b.measured.step_time_s
    return abs(one / other - 1) if one and other else math.inf
