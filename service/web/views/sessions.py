"""The list of sessions: a line each, the filters in force, and the addresses that change them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from service.report.text import times
from service.store.rows import SessionRow
from service.store.states import STATES

FIELDS = ("state", "device", "label", "q")


@dataclass(frozen=True)
class Line:
    row: SessionRow

    @property
    def title(self) -> str:
        return self.row.model or "unnamed model"

    @property
    def devices(self) -> str:
        return f"{self.row.num_devices:,} × {self.row.device}" if self.row.num_devices else ""

    @property
    def predicted(self) -> str:
        return times(self.row.speedup) if self.row.speedup is not None else ""

    @property
    def measured(self) -> str:
        return times(self.row.measured_speedup) if self.row.measured_speedup is not None else ""


@dataclass(frozen=True)
class Tab:
    name: str
    state: str | None
    count: int
    address: str
    is_chosen: bool


@dataclass(frozen=True)
class SessionList:
    lines: Sequence[Line]
    tabs: Sequence[Tab]
    chosen: Mapping[str, str]
    next_address: str | None
    first_address: str | None
    """Where a later page is shown."""
    total: int

    @property
    def is_filtered(self) -> bool:
        return any(self.chosen.values())


def session_list(
    rows: Sequence[SessionRow],
    counts: Mapping[str, int],
    given: Mapping[str, str | None],
    cursor: str | None,
    next_cursor: str | None,
) -> SessionList:
    chosen = {name: given.get(name) or "" for name in FIELDS}
    return SessionList(
        lines=[Line(row) for row in rows],
        tabs=_tabs(counts, chosen),
        chosen=chosen,
        next_address=_address(chosen | {"cursor": next_cursor}) if next_cursor else None,
        first_address=_address(chosen) if cursor else None,
        total=sum(counts.values()),
    )


def _tabs(counts: Mapping[str, int], chosen: Mapping[str, str]) -> list[Tab]:
    state = chosen["state"] or None
    own = [
        Tab(one, one, counts.get(one, 0), _address({**chosen, "state": one}), one == state)
        for one in STATES
        if counts.get(one) or one == state
    ]
    return [Tab("all", None, sum(counts.values()), _address({**chosen, "state": ""}), state is None), *own]


def _address(fields: Mapping[str, str]) -> str:
    stated = {name: value for name, value in fields.items() if value}
    return f"/?{urlencode(stated)}" if stated else "/"
