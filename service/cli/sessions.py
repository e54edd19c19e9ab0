"""`asap sessions`: submit to a server, follow, fetch and decide."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service.cli.io import (
    FORMS,
    MAX_SCENARIO_BYTES,
    add_server,
    check_ended,
    connect,
    parse_fields,
    read_object,
    safe_text,
    write_document,
    write_json_line,
)
from service.cli.parser import add_action, positive_number
from tools.errors import InputError

if TYPE_CHECKING:
    from asap_client.client import Client
    from asap_client.models import Event, Session, SessionPage

STATES = ("queued", "running", "waiting_approval", "completed", "failed", "cancelled")
DECISIONS = ("approve", "reject", "edit", "submit")


def add_actions(parser: ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    def add(name: str, about: str) -> ArgumentParser:
        action = add_action(actions, name, about)
        action.add_argument("id", metavar="ID", help="the session, as 'submit' and 'list' print it")
        return action

    _submit(add_action(actions, "submit", "submit a scenario, and print the session's ID"))
    _list(add_action(actions, "list", "sessions, newest first"))
    add("show", "one session: its state, verdict and speed-up")
    following = add("events", "what happens in it, as it happens, to its end")
    following.add_argument("--after", type=int, default=0, metavar="N", help="begin after this event (0)")
    reporting = add("report", "the report of a completed session")
    reporting.add_argument(
        "--format", choices=tuple(FORMS), default="markdown", help="how to print it (markdown)"
    )
    exporting = add("export", "a proposal as the configuration of a framework")
    exporting.add_argument(
        "--format", required=True, metavar="NAME", help="a format that 'asap export --help' lists"
    )
    exporting.add_argument(
        "--proposal", type=positive_number, default=1, metavar="RANK", help="which one (1)"
    )
    _decide(add("decide", "approve, reject, edit a proposal, or submit a plan of your own"))
    add("cancel", "stop it")
    add("retry", "run a failed or cancelled one again")
    add("delete", "delete one that has ended")
    add_server(actions)


def _submit(parser: ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a scenario as JSON; - for standard input")
    parser.add_argument(
        "--label", action="append", metavar="NAME=VALUE", help="to find it again by; may be repeated"
    )
    parser.add_argument("--upload", action="store_true", help="upload the folder that `traces` names")
    parser.add_argument("--wait", action="store_true", help="wait for the end and print the report")
    parser.add_argument(
        "--idempotency-key", metavar="TEXT", help="submitting again with the same key submits nothing"
    )


def _list(parser: ArgumentParser) -> None:
    parser.add_argument("--state", choices=STATES, help="only these")
    parser.add_argument("--device", metavar="NAME", help="only on this device of the catalogue")
    parser.add_argument("--model", metavar="NAME", help="only of the model with this name")
    parser.add_argument(
        "--label", action="append", metavar="NAME[=VALUE]", help="may be repeated; of several all must hold"
    )
    parser.add_argument("--text", metavar="WORDS", help="words that occur in it")
    parser.add_argument(
        "--limit", type=positive_number, default=50, metavar="N", help="how many at most (50)"
    )


def _decide(parser: ArgumentParser) -> None:
    parser.add_argument("decision", choices=DECISIONS, metavar="DECISION", help=", ".join(DECISIONS))
    parser.add_argument("--proposal", type=positive_number, metavar="RANK", help="which one (1)")
    parser.add_argument(
        "--plan", metavar="FIELDS", help="with edit and submit: name=value,... or a JSON object"
    )
    parser.add_argument("--comment", metavar="TEXT", help="why")


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


def print_sessions(page: "SessionPage") -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

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
            safe_text(one.model or ""),
            f"{one.num_devices} {one.device}",
            f"{one.created_at:%Y-%m-%d %H:%M}",
            safe_text(one.owner),
        )
        table.add_row(*cells[:shown])
    console.print(table)
    if page.next_cursor:
        console.print("[dim]there are more; narrow the list or raise --limit[/]")


def print_session(session: "Session") -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

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
            table.add_row(Text(name, "bold"), safe_text(value))
    Console().print(table)


def event_line(event: "Event") -> str:
    """One line, whatever the event holds."""
    said = ", ".join(f"{name}={_brief(value)}" for name, value in event.content.items())
    line = f"{event.seq:>4}  {event.at:%H:%M:%S}  {event.node:<12} {event.kind:<10} {said}"
    printable = "".join(c if c.isprintable() else " " for c in line)
    return printable if len(printable) <= MOST_CHARACTERS else printable[: MOST_CHARACTERS - 1] + "…"


def _brief(value: object) -> object:
    return f"{value:.3g}" if isinstance(value, float) else value


HELP = """\
Submit sessions to an 'asap serve', follow them, fetch what they found and decide on it.

The server is --server or ASAP_SERVER (http://127.0.0.1:8000), the key it may want ASAP_API_KEY.
FILE is what 'asap optimize' takes; `mode`, `approval`, `labels`, `priority`, `webhook` and `budget`
may stand in it too. A `traces` folder of this machine is uploaded with --upload.

Exit status of 'submit --wait': 3 nothing fits; 1 it failed otherwise, or was cancelled; 2 the scenario is
wrong.

Examples:
  asap sessions submit examples/llama-3.1-70b-64xh100.json --label team=pretraining --wait
  asap sessions list --state running
  asap sessions events ID
  asap sessions decide ID approve --proposal 1
  asap sessions decide ID submit --plan tp=8,pp=1 --comment "the racks changed"
  asap sessions report ID --format markdown"""


def add_arguments(parser: ArgumentParser) -> None:
    add_actions(parser)


def run(args: Namespace) -> int:
    with connect(args.server) as client:
        return ACTIONS[args.action](client, args) or 0


def _submit_sessions(client: "Client", args: Namespace) -> None:
    body = _body(client, args)
    session = client.submit(body, args.idempotency_key)
    if args.wait:
        _finish(client, client.wait(session.id), as_json=args.json)
    elif args.json:
        write_json_line(session.raw)
    else:
        sys.stdout.write(f"{session.id}\n")


def _body(client: "Client", args: Namespace) -> dict[str, Any]:
    body = dict(read_object(args.file, MAX_SCENARIO_BYTES))
    if args.label:
        labels = body.get("labels") or {}
        if not isinstance(labels, dict):
            raise InputError("labels", labels, "must be an object of names and values")
        body["labels"] = {**labels, **dict(map(_label, args.label))}
    if args.upload:
        folder = body.get("traces")
        if not isinstance(folder, str) or not Path(folder).is_dir():
            raise InputError("traces", folder, "with --upload it must name a folder of this machine")
        body["traces"] = client.upload(Path(folder)).reference
    return body


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InputError("--label", text, "allowed: name=value")
    return name, value


def _finish(client: "Client", session: "Session", *, as_json: bool) -> None:
    """The report of a completed session; one that waits is shown as it is."""
    if not check_ended(session):
        _show_one(session, as_json=as_json)
    elif as_json:
        write_json_line(client.report(session.id))
    else:
        write_document(client.report_text(session.id))


def _list_sessions(client: "Client", args: Namespace) -> None:
    filters = {name: getattr(args, name) for name in ("state", "device", "model", "label", "text")}
    page = client.sessions(**filters, limit=args.limit)
    if args.json:
        for session in page.items:
            write_json_line(session.raw)
        return

    print_sessions(page)


def _show(client: "Client", args: Namespace) -> None:
    _show_one(client.session(args.id), as_json=args.json)


def _show_one(session: "Session", *, as_json: bool) -> None:
    if as_json:
        write_json_line(session.raw)
        return

    print_session(session)


def _events(client: "Client", args: Namespace) -> None:

    for event in client.events(args.id, args.after):
        if args.json:
            write_json_line(event.raw)
        else:
            sys.stdout.write(event_line(event) + "\n")
        sys.stdout.flush()


def _report(client: "Client", args: Namespace) -> None:
    if args.json:
        write_json_line(client.report(args.id))
    else:
        write_document(client.report_text(args.id, FORMS[args.format]))


def _export(client: "Client", args: Namespace) -> None:
    export = client.export(args.id, args.proposal, args.format)
    if args.json:
        write_json_line(export.raw)
        return
    sys.stdout.write(export.text)
    for note in export.notes:
        sys.stderr.write(f"asap: note: {note}\n")


def _decide_sessions(client: "Client", args: Namespace) -> None:
    given = {"action": args.decision, "proposal": args.proposal, "comment": args.comment}
    decision = {name: value for name, value in given.items() if value is not None}
    if args.plan:
        decision["plan"] = parse_fields(args.plan, "--plan")
    _show_one(client.decide(args.id, decision), as_json=args.json)


def _delete(client: "Client", args: Namespace) -> None:
    client.delete(args.id)
    if args.json:
        write_json_line({"id": args.id, "deleted": True})


def _move(name: str) -> Callable[["Client", Namespace], None]:
    def move(client: "Client", args: Namespace) -> None:
        _show_one(getattr(client, name)(args.id), as_json=args.json)

    return move


ACTIONS: dict[str, Callable[["Client", Namespace], int | None]] = {
    "submit": _submit_sessions,
    "list": _list_sessions,
    "show": _show,
    "events": _events,
    "report": _report,
    "export": _export,
    "decide": _decide_sessions,
    "cancel": _move("cancel"),
    "retry": _move("retry"),
    "delete": _delete,
}
