"""How far predictions were from published runs: what `make validate` measured, as `kb_seed/validation.json`.

Every run was predicted by a fit that had not seen it. `research/validate.py` writes the file, pages read it.
"""

from typing import Literal

import kb_seed
from tools.scenario.spec import ClosedModel

ScoreGrouping = Literal["rows", "source", "device", "framework", "kind of model", "fabric"]
RunKind = Literal["dense", "moe", "small"]
"""Very small models (`small`) are mostly host time and scored apart."""
BenchmarkTask = Literal["step time", "peak memory"]


class Point(ClosedModel):
    """One published run."""

    measured_s: float
    predicted_s: float
    kind: RunKind


class Score(ClosedModel):
    """Errors of the step time over a set of runs, as ratios."""

    section: str
    """How the runs were left out of the fit, as a heading."""
    grouped_by: ScoreGrouping
    name: str
    rows: int
    mape: float
    median: float
    bias: float
    within_10: float
    coverage: float
    """Share of the runs inside their 80% interval."""
    half_width: float = 0.0
    """Half of the interval's width in the median, as a ratio; 0 in files that older releases wrote."""


class MemoryScore(ClosedModel):
    """Error of the peak memory, for the `rows` that published one."""

    name: str
    rows: int
    mape: float
    fits_share: float
    """Share of the runs predicted to fit; all of them ran."""


class Validation(ClosedModel):
    """The whole of kb_seed/validation.json."""

    rows: tuple[Score, ...]
    memory: tuple[MemoryScore, ...]
    points: tuple[Point, ...]


class BenchmarkScore(ClosedModel):
    """The error of a cost model in the benchmark, as a mean over sources, on the runs that it answers."""

    name: str
    task: BenchmarkTask
    error: float | None
    answered: int
    runs: int
    beside: float | None
    """The error of `Benchmark.beside` on the runs that are answered."""


class Benchmark(ClosedModel):
    """The whole of kb_seed/benchmark.json, which benchmarks/plans.py writes."""

    beside: str
    scores: tuple[BenchmarkScore, ...]


def find_benchmark() -> Benchmark | None:
    """None if the package was built without it."""
    file = kb_seed.folder("benchmark.json")
    return Benchmark.model_validate_json(file.read_text("utf-8")) if file.is_file() else None


def find_validation() -> Validation | None:
    """The scores of the installed package; None if it was built without them."""
    file = kb_seed.folder("validation.json")
    return Validation.model_validate_json(file.read_text("utf-8")) if file.is_file() else None
