"""This installation's own trials: cases that have both a prediction and a measurement."""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from service.web.figures.accuracy import OWN, Pair
from service.web.validation import Validation
from tools.kb import Entry

STEP = "step_time_s"
ALL, DENSE, EXPERTS = "all", "dense", "mixture of experts"
INTERVAL = "80% interval holds"


@dataclass(frozen=True)
class Trial:
    id: str
    title: str
    status: str
    pair: Pair

    @property
    def error_ratio(self) -> float:
        return self.pair.predicted_s / self.pair.measured_s - 1


def trials_of(entries: Iterable[Entry]) -> list[Trial]:
    """Newest last, as the knowledge base keeps them."""
    return [trial for entry in entries if (trial := _find_trial(entry))]


@dataclass(frozen=True)
class Trust:
    """How predictions of published runs did, as the validation's page writes it."""

    runs: str
    median: str
    holds: str
    devices: frozenset[str]
    """On which some of them ran."""


def trust_of(validation: Validation | None, rows: str = ALL) -> Trust | None:
    """From the row of these runs; None where the page has none."""
    for section in validation.sections if validation else ():
        found = next((one for one in section.rows if one[0] == rows), [])
        row = dict(zip(section.header[1:], found[1:], strict=False))
        if {"rows", "median", INTERVAL} <= row.keys():
            return Trust(row["rows"], row["median"], row[INTERVAL], _devices(validation))
    return None


def _devices(validation: Validation | None) -> frozenset[str]:
    sections = validation.sections if validation else ()
    return frozenset(row[0] for one in sections if one.header[0] == "device" for row in one.rows)


def median_error(trials: list[Trial]) -> float | None:
    return median(abs(one.error_ratio) for one in trials) if trials else None


def _find_trial(entry: Entry) -> Trial | None:
    predicted = _number((entry.body.get("predicted") or {}).get(STEP))
    measured = _number((entry.body.get("measured") or {}).get(STEP))
    if predicted is None or measured is None:
        return None
    return Trial(entry.id, entry.title, entry.status, Pair(measured, predicted, OWN, entry.title))


def _number(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and value > 0 else None  # type: ignore[arg-type, operator]
