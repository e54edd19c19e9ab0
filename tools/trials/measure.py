"""What a finished job says about its plan: median step with its interval, noise, memory and losses."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median, variance
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, field_validator

from tools.errors import AsapError, InputError
from tools.launch.failures import AsText, printable
from tools.launch.folder import open_plain
from tools.scenario import Plan
from tools.scenario.fields import input_error
from tools.trials.gate import SIGMAS_95, PairedRatio

RESULT, TRACES = "result.json", "traces"
COVERAGE = 0.95
MAX_BYTES = 16 * 2**20
MAX_STEPS = 100_000
_MAX_DIGITS, _NAME_CHARACTERS = 19, 253
NORMAL_SPREAD = 1.4826
"""Standard deviations in a median absolute deviation, for a normal distribution."""
Positive = Annotated[float, Field(gt=0)]


class MeasurementError(AsapError):
    """The job ended well and left nothing that can be read as a measurement."""


@dataclass(frozen=True)
class Measurement:
    """One run, or several of the same plan."""

    step_times_s: tuple[float, ...]
    """The measured steps, in the order in which they ran."""
    losses: tuple[float, ...]
    """The loss of every step from the first on: what the gate compares."""
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
        """Holds the median and those of single runs, since steps of one run are not independent."""
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


class _ResultFile(BaseModel):
    """`result.json`, as a training program writes it (docs/trials.md)."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    step_times_s: list[Positive] = Field(min_length=1, max_length=MAX_STEPS)
    losses: list[float] = Field(max_length=MAX_STEPS)
    fingerprint: dict[str, JsonValue] = Field(min_length=1)
    peak_memory_bytes: list[float] | None = Field(None, max_length=MAX_STEPS)
    nodes: list[AsText] | None = Field(None, max_length=MAX_STEPS)

    @field_validator("fingerprint")
    @classmethod
    def _is_finite(cls, fingerprint: dict[str, JsonValue]) -> dict[str, JsonValue]:
        json.dumps(fingerprint, allow_nan=False)
        return fingerprint


def read_measurement(folder: Path) -> Measurement:
    """Raises MeasurementError for what is missing or no measurement."""
    file = open_plain(folder / RESULT)
    if file is None:
        raise MeasurementError(f"the job left no {RESULT}: its program must write one (docs/trials.md)")
    with file:
        text = file.read(MAX_BYTES + 1)
    try:
        # No store takes a whole number beyond 64 bits; a float with as many digits may be infinite.
        content = json.loads(
            text[:MAX_BYTES],
            parse_int=lambda digits: int(digits) if len(digits) < _MAX_DIGITS else float(digits),
        )
        left = _ResultFile.model_validate(content)
    except ValidationError as error:
        fault = input_error(error, _ResultFile)
        raise MeasurementError(f"{RESULT}: {fault.path}: {fault.rule}") from None
    except (ValueError, RecursionError):
        raise MeasurementError(f"{RESULT} must be one JSON object of at most {MAX_BYTES:,} bytes") from None
    return Measurement(
        step_times_s=tuple(left.step_times_s),
        losses=tuple(left.losses),
        fingerprint=left.fingerprint,
        peak_memory_bytes=int(max(left.peak_memory_bytes)) if left.peak_memory_bytes else None,
        nodes=tuple(printable(name, _NAME_CHARACTERS) for name in left.nodes or ()),
        run_medians_s=(median(left.step_times_s),),
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


def paired_ratio(against: str, pairs: Sequence[tuple[Measurement, Measurement]]) -> PairedRatio:
    """The geometric mean of the first of each pair over the second. Its error is from their scatter, or from
    that of the steps within them if it is wider."""
    logs = [math.log(own.step_time_s / other.step_time_s) for own, other in pairs]
    within = mean((own.uncertainty**2 + other.uncertainty**2) / SIGMAS_95**2 for own, other in pairs)
    error = math.sqrt(max(within, variance(logs) if len(logs) > 1 else 0.0) / len(logs))
    low, middle, high = (math.exp(mean(logs) + sign * SIGMAS_95 * error) for sign in (-1, 0, 1))
    return PairedRatio(against=against, ratio=middle, low=low, high=high, pairs=len(pairs))


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
