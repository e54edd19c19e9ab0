"""What `make fit` learned, as one object: the coefficients' shifts and the intervals."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import kb_seed
from tools.cost.coefficients import Shifts
from tools.cost.intervals import IntervalModel
from tools.errors import DataError


@dataclass(frozen=True)
class Calibration:
    shifts: Shifts
    intervals: IntervalModel

    def to_data(self) -> dict[str, Any]:
        """As plain data, which a session keeps and a later one reads."""
        plain: dict[str, Any] = json.loads(
            json.dumps({"shifts": self.shifts, "intervals": self.intervals.to_data()})
        )
        return plain

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> "Calibration":
        return cls(data["shifts"], IntervalModel.from_data(data["intervals"]))


@cache
def shipped_calibration() -> Calibration:
    """The calibration that comes with the package."""
    try:
        data = json.loads(kb_seed.folder("calibration").joinpath("fitted.json").read_text())
        return Calibration.from_data(data)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"kb_seed/calibration/fitted.json cannot be used ({error}); run make fit") from error
