"""What a finished job says about its plan: median step with its interval, noise, memory and losses."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from pydantic import JsonValue

from tools.errors import AsapError, InputError
from tools.launch.failures import printable
from tools.launch.files import open_plain
from tools.scenario import Plan
from tools.scenario.fields import JsonObject

RESULT, TRACES = "result.json", "traces"
COVERAGE = 0.95
MAX_BYTES = 16 * 2**20
MAX_STEPS = 100_000
_MAX_DIGITS, _NAME_CHARACTERS = 19, 253
NORMAL_SPREAD = 1.4826
"""Standard deviations in a median absolute deviation, for a normal distribution."""


class MeasurementError(AsapError):
    """The job ended well and left nothing that can be read as a measurement."""


@dataclass(frozen=True)
class Measurement:
    """Of one run or of several of the same plan."""

    step_times_s: tuple[float, ...]
    """Of the measured steps, in the order in which they ran."""
    losses: tuple[float, ...]
    """Of every step from the first on: what the gate compares."""
    fingerprint: Mapping[str, JsonValue]
    """Everything that must be equal for two runs to be compared."""
    peak_memory_bytes: int | None = None
    nodes: tuple[str, ...] = ()
    run_medians_s: tuple[float, ...] = ()

    @property
    def step_time_s(self) -> float:
        return median(self.step_times_s)

    @property
    def interval_s(self) -> tuple[float, float]:
        """Of the median; those of single runs lie in it too, since steps of one run are not independent."""
        low, high, _ = median_interval(self.step_times_s)
        return min(low, *self.run_medians_s, high), max(high, *self.run_medians_s, low)

    @property
    def confidence(self) -> float:
        """How often such an interval holds the median: below 95% if there were few steps."""
        return median_interval(self.step_times_s)[2]

    @property
    def noise(self) -> float:
        """Robust spread of a step over the median."""
        middle = self.step_time_s
        return NORMAL_SPREAD * median(abs(step_s - middle) for step_s in self.step_times_s) / middle

    @property
    def uncertainty(self) -> float:
        """Half the width of the interval over the median."""
        low, high = self.interval_s
        return (high - low) / 2 / self.step_time_s


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """(low, high, its coverage) of the median, whatever the distribution: two order statistics.

    The k-th smallest and the k-th largest of n hold the median with probability 1 - 2 P(B < k), B binomial
    with n and 1/2. Source: David and Nagaraja, Order Statistics (2003), section 7.1.
    """
    ordered, n = sorted(values), len(values)
    # From the middle outwards: `share` is P(B = k), which P(B = n - k) equals.
    k, covered, share = n // 2 + 1, 0.0, math.comb(n, n // 2) / 2**n
    while k > 1 and covered < COVERAGE:
        k -= 1
        covered += share if 2 * k == n else 2 * share
        share *= k / (n - k + 1)
    return ordered[k - 1], ordered[n - k], covered


def read_measurement(folder: Path) -> Measurement:
    """Raises MeasurementError for what is missing or no measurement."""
    content = _read(folder / RESULT)
    times = _numbers(content, "step_times_s")
    if not times or any(step_s <= 0 for step_s in times):
        raise MeasurementError(f"{RESULT}: step_times_s must have at least one time above 0")
    memory = content.get("peak_memory_bytes")
    return Measurement(
        step_times_s=times,
        losses=_numbers(content, "losses"),
        fingerprint=_table(content, "fingerprint"),
        peak_memory_bytes=int(max(_numbers(content, "peak_memory_bytes"))) if memory else None,
        nodes=_names(content, "nodes"),
        run_medians_s=(median(times),),
    )


def pooled(runs: Sequence[Measurement]) -> Measurement:
    """Several runs of one plan as one measurement; losses are the first's, which the others repeat.

    A run that is not comparable with the first, on other nodes say, is no repeat of it and left out."""
    first = runs[0]
    runs = [run for run in runs if run.fingerprint == first.fingerprint]
    memory = [run.peak_memory_bytes for run in runs if run.peak_memory_bytes is not None]
    return Measurement(
        step_times_s=tuple(step for run in runs for step in run.step_times_s),
        losses=first.losses,
        fingerprint=first.fingerprint,
        peak_memory_bytes=max(memory) if memory else None,
        nodes=first.nodes,
        run_medians_s=tuple(run.step_time_s for run in runs),
    )


def _read(path: Path) -> JsonObject:
    file = open_plain(path)
    if file is None:
        raise MeasurementError(f"the job left no {RESULT}: its program must write one (docs/trials.md)")
    with file:
        text = file.read(MAX_BYTES + 1)
    try:
        content = json.loads(text, parse_int=_whole) if len(text) <= MAX_BYTES else None
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise MeasurementError(f"{RESULT} must be one JSON object of at most {MAX_BYTES:,} bytes")
    return content


def _whole(digits: str) -> float:
    """No store takes a whole number beyond 64 bits; a float with as many digits may be infinite."""
    return int(digits) if len(digits) < _MAX_DIGITS else float(digits)


def _numbers(content: Mapping[str, JsonValue], name: str) -> tuple[float, ...]:
    values = content.get(name)
    if not isinstance(values, list) or len(values) > MAX_STEPS or not all(map(_is_finite, values)):
        raise MeasurementError(f"{RESULT}: {name} must be a list of finite numbers")
    return tuple(float(value) for value in values if isinstance(value, int | float))


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _names(content: Mapping[str, JsonValue], name: str) -> tuple[str, ...]:
    values = content.get(name) or []
    if not isinstance(values, list) or len(values) > MAX_STEPS:
        raise MeasurementError(f"{RESULT}: {name} must be a list of names")
    return tuple(printable(str(value), _NAME_CHARACTERS) for value in values)


def _table(content: Mapping[str, JsonValue], name: str) -> JsonObject:
    value = content.get(name)
    if not isinstance(value, dict) or not value:
        raise MeasurementError(f"{RESULT}: {name} must be an object with what two runs must have in common")
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        raise MeasurementError(f"{RESULT}: {name} must have finite numbers only") from None
    return value


def read_terms(traces: Path, plan: Plan) -> dict[str, float] | None:
    """Seconds per step of a profile's terms; nothing if no trace shows a whole step or none can be read."""
    from tools.trace.alignment import align
    from tools.trace.folder import profile_folder
    from tools.trace.terms import measure_terms

    try:
        profiles = [rank for rank in profile_folder(traces).ranks if rank.breakdown.total_ns]
    except InputError:  # nothing to read there
        return None
    measured = measure_terms(profiles, align(profiles), plan) if profiles else None
    return measured.terms_s if measured and measured.num_steps else None
