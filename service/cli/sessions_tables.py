"""How `asap sessions` shows sessions and events to people."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from service.cli.cells import said
from service.client_models import Event, Session, SessionPage

COLOURS = {
    "queued": "dim",
    "running": "cyan",
    "waiting_approval": "yellow",
    "completed": "green",
    "failed": "red",
    "cancelled": "dim",
}
MOST_CHARACTERS = 120
COLUMNS = {
    "id": 32, "state": 16, "speed-up": 8, "model": 13, "devices": 16, "submitted": 16, "owner": 5,
}  # fmt: skip
"""With the characters that each needs to be of use."""
WIDE, COLUMNS_OF_NARROW = 120, 4
"""A terminal of 80 characters has room for the first four."""


def print_sessions(page: SessionPage) -> None:
    console = Console()
    if not page.items:
        console.print("no sessions")
        return
    table = Table(box=None, header_style="bold")
    shown = len(COLUMNS) if console.width >= WIDE else COLUMNS_OF_NARROW
    for column, width in list(COLUMNS.items())[:shown]:
        table.add_column(column, no_wrap=True, min_width=width)
    for one in page.items:
        cells = (
            one.id,
            Text(one.state, COLOURS[one.state]),
            "" if one.speedup is None else f"{one.speedup:.2f}x",
            said(one.model or ""),
            f"{one.num_devices} {one.device}",
            f"{one.created_at:%Y-%m-%d %H:%M}",
            said(one.owner),
        )
        table.add_row(*cells[:shown])
    console.print(table)
    if page.next_cursor:
        console.print("[dim]there are more; narrow the list or raise --limit[/]")


def print_session(session: Session) -> None:
    table = Table(box=None, show_header=False)
    rows = {
        "id": session.id,
        "state": session.state + (" (asked to stop)" if session.cancel_requested else ""),
        "model": session.model,
        "devices": f"{session.num_devices} {session.device}",
        "submitted": f"{session.created_at:%Y-%m-%d %H:%M:%S} UTC by {session.owner}",
        "labels": ", ".join(f"{name}={value}" for name, value in session.labels.items()),
        "bottleneck": session.bottleneck,
        "verdict": session.verdict,
        "speed-up": None if session.speedup is None else f"{session.speedup:.2f}x predicted",
        "measured": None if session.measured_speedup is None else f"{session.measured_speedup:.2f}x",
        "error": (session.error or {}).get("message"),
    }
    for name, value in rows.items():
        if value:
            table.add_row(Text(name, "bold"), said(value))
    Console().print(table)


def event_line(event: Event) -> str:
    """One line, whatever the event holds."""
    said = ", ".join(f"{name}={_brief(value)}" for name, value in event.content.items())
    line = f"{event.seq:>4}  {event.at:%H:%M:%S}  {event.node:<12} {event.kind:<10} {said}"
    printable = "".join(c if c.isprintable() else " " for c in line)
    return printable if len(printable) <= MOST_CHARACTERS else printable[: MOST_CHARACTERS - 1] + "…"


def _brief(value: object) -> object:
    return f"{value:.3g}" if isinstance(value, float) else value
