"""Tables of `asap schedule`."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from service.cli.cells import said

if TYPE_CHECKING:
    from service.client_schedules import Run, Schedule

LEAST_WIDTH = 120


def print_schedules(schedules: Sequence["Schedule"]) -> None:
    table = _table("name", "state", "cron", "zone", "next", "workloads", "last night")
    for one in schedules:
        count = str(len(one.definition.get("workloads") or []))
        words = (one.name, one.state, one.cron, one.zone, _time(one.next_at), count, _last(one))
        table.add_row(*map(said, words))
    _console().print(table if schedules else "no schedules; 'asap schedule add FILE' makes one")


def print_schedule(schedule: "Schedule") -> None:
    names = [one["name"] for one in schedule.definition.get("workloads") or []]
    rows = {
        "name": schedule.name,
        "id": schedule.id,
        "state": schedule.state,
        "reason": schedule.reason or "",
        "cron": f"{schedule.cron} ({schedule.zone})",
        "next": _time(schedule.next_at),
        "last night": _last(schedule),
        "workloads": ", ".join(names),
    }
    table = Table(box=None, show_header=False)
    for name, value in rows.items():
        if value:
            table.add_row(Text(name, style="bold"), said(value))
    Console().print(table)


def print_runs(runs: Sequence["Run"]) -> None:
    table = _table("id", "planned", "by", "state", "outcome", "reason")
    for one in runs:
        words = (one.id, _time(one.planned_at), one.trigger, one.state, one.outcome or "", one.reason or "")
        table.add_row(*map(said, words))
    _console().print(table if runs else "no nights yet")


def _last(schedule: "Schedule") -> str:
    last = schedule.last_run
    if last is None:
        return "none yet"
    told = last.outcome or last.state
    return f"{_time(last.planned_at)} {told}" + (f": {last.reason}" if last.reason else "")


def _time(moment: datetime | None) -> str:
    return "" if moment is None else moment.strftime("%Y-%m-%d %H:%M UTC")


def _console() -> Console:
    """Wide enough for an id beside the rest: what is to be copied must not be broken."""
    return Console(width=max(Console().width, LEAST_WIDTH))


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
