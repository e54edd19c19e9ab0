"""The graph of the agents as a drawing: where each node stands, and the strip of who worked when."""

from collections.abc import Sequence
from dataclasses import dataclass

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
    """The nodes that worked, in order, and when each did."""
    worked = list(dict.fromkeys(run.node for run in trail.runs if not run.is_move))
    return worked, [one for run in trail.runs if not run.is_move for one in _stretch(run, worked, trail)]


def _stretch(run: Run, worked: Sequence[str], trail: Trail) -> list[Stretch]:
    whole = trail.end_s - trail.start_s
    if whole <= 0:
        return []
    took_s = trail.end_s - run.at_s if run.took_s is None else run.took_s
    width = max(100 * took_s / whole, LEAST_PERCENT)
    x = min(100 * (run.at_s - trail.start_s) / whole, 100 - width)
    return [Stretch(run, max(0.0, x), width, worked.index(run.node))]
