"""The graph of the agents as a drawing: where each node stands, and the strip of who worked when."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from service.web.views.trail import COORDINATOR, Run, Trail

WORKERS = ("analyzer", "proposal", "verify", "approve", "trial", "learn")
REPORT = "report"
BOX_WIDTH, BOX_HEIGHT = 118, 30
LEAST_PERCENT = 0.4
"""What takes less is drawn so wide, or it could not be seen."""
MEANINGS = {
    COORDINATOR: "chooses the next step",
    "analyzer": "what limits a plan",
    "proposal": "searches plans",
    "verify": "computes again",
    "approve": "asks a person",
    "trial": "measures a plan",
    "learn": "keeps the outcome",
    REPORT: "puts it together",
}


@dataclass(frozen=True)
class Node:
    name: str
    x: int
    y: int
    visits: int
    is_lit: bool

    @property
    def middle(self) -> tuple[int, int]:
        return self.x + BOX_WIDTH // 2, self.y + BOX_HEIGHT // 2

    @property
    def says(self) -> str:
        return f"{self.name}: {MEANINGS[self.name]}; ran {self.visits} times" + (
            ", at work now" if self.is_lit else ""
        )


@dataclass(frozen=True)
class Stretch:
    """A run on the strip, in percent of its width."""

    run: Run
    x: float
    width: float
    row: int


def nodes_of(trail: Trail) -> list[Node]:
    """The coordinator in the middle, the workers above and below, the report beside it."""
    places = {COORDINATOR: (151, 85), REPORT: (292, 85)}
    for index, name in enumerate(WORKERS):
        places[name] = (10 + 141 * (index % 3), 15 + 140 * (index // 3))
    visits, current = trail.visits, trail.current
    return [Node(name, x, y, visits[name], name == current) for name, (x, y) in places.items()]


def strip_of(trail: Trail) -> tuple[list[str], list[Stretch]]:
    """The nodes that worked, in order, and when each did; time in which nobody worked is left out."""
    runs = [run for run in trail.runs if not run.is_move]
    worked = list(dict.fromkeys(run.node for run in runs))
    lengths_s = [trail.end_s - run.at_s if run.took_s is None else run.took_s for run in runs]
    whole_s = sum(lengths_s)
    if whole_s <= 0:
        return worked, []
    ends_s = list(accumulate(lengths_s))
    return worked, [
        _stretch(run, 100 * (end_s - length_s) / whole_s, 100 * length_s / whole_s, worked)
        for run, length_s, end_s in zip(runs, lengths_s, ends_s, strict=True)
    ]


def _stretch(run: Run, x: float, width: float, worked: Sequence[str]) -> Stretch:
    wide = max(width, LEAST_PERCENT)
    return Stretch(run, max(0.0, min(x, 100 - wide)), wide, worked.index(run.node))
