"""How far predictions were from published runs: what `make validate` measured, as `kb_seed/validation.json`.

Every run was predicted by a fit that had not seen it. `research/validate.py` writes the file, pages read it.
"""

from typing import Literal

import kb_seed
from tools.scenario.spec import Result

RunKind = Literal["dense", "moe", "small"]
"""Very small models (`small`) are mostly host time and scored apart."""


class Point(Result):
    """One published run."""

    measured_s: float
    predicted_s: float
    kind: RunKind


class Score(Result):
    """Errors of the step time over a set of runs, as ratios."""

    section: str
    """How the runs were left out of the fit, as a heading."""
    grouped_by: Literal["rows", "source", "device"]
    name: str
    rows: int
    mape: float
    median: float
    bias: float
    within_10: float
    coverage: float
    """Share of the runs inside their 80% interval."""


class MemoryScore(Result):
    """Error of the peak memory, for the `rows` that published one."""

    name: str
    rows: int
    mape: float
    fits_share: float
    """Share of the runs predicted to fit; all of them ran."""


class Validation(Result):
    """The whole of kb_seed/validation.json."""

    rows: tuple[Score, ...]
    memory: tuple[MemoryScore, ...]
    points: tuple[Point, ...]


def find_validation() -> Validation | None:
    """The scores of the installed package; None if it was built without them."""
    file = kb_seed.folder("validation.json")
    return Validation.model_validate_json(file.read_text("utf-8")) if file.is_file() else None
