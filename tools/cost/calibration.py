"""What `make fit` learned, as one object: the coefficients' shifts and the intervals."""

import json
from dataclasses import dataclass
from functools import cache

import kb_seed
from tools.cost.coefficients import Shifts
from tools.cost.intervals import IntervalModel
from tools.errors import DataError


@dataclass(frozen=True)
class Calibration:
    shifts: Shifts
    intervals: IntervalModel


@cache
def shipped_calibration() -> Calibration:
    """The calibration that comes with the package."""
    try:
        data = json.loads(kb_seed.folder("calibration").joinpath("fitted.json").read_text())
        return Calibration(data["shifts"], IntervalModel.from_data(data["intervals"]))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"kb_seed/calibration/fitted.json cannot be used ({error}); run make fit") from error
