"""`asap sessions`: submit to a server, follow, fetch and decide."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from service.cli.io import (
    FORMS,
    MAX_SCENARIO_BYTES,
    add_server,
    check_ended,
    connect,
    parse_fields,
    print_fields,
    read_object,
    safe_text,
    write_document,
    write_json_line,
)
from service.cli.parser import add_action, positive_number
from service.strict_json import JsonObject
from tools.errors import InputError

if TYPE_CHECKING:
    from asap_client.client import Client
    from asap_client.models import Event, Session, SessionPage

STATES = ("queued", "running", "waiting_approval", "completed", "failed", "cancelled")
DECISIONS = ("approve", "reject", "edit", "submit")
COLOURS = {
    "queued": "dim",
    "running": "cyan",
    "waiting_approval": "yellow",
    "completed": "green",
    "failed": "red",
    "cancelled": "dim",
}
MAX_LINE_CHARACTERS = 120
COLUMNS = {
    "id": 32, "state": 16, "speed-up": 8, "model": 13, "devices": 16, "submitted": 16, "owner": 5,
}  # fmt: skip
"""With the minimum width of each."""
WIDE, NARROW_COLUMNS = 120, 4
"""A terminal narrower than WIDE shows the first four columns."""

HELP = """\
Submit sessions to an 'asap serve', follow them, fetch their reports and decide on proposals.

The server is --server or ASAP_SERVER (http://127.0.0.1:8000); its key, if needed, ASAP_API_KEY.
FILE is what 'asap optimize' takes; it may also contain `mode`, `approval`, `labels`, `priority`,
`webhook` and `budget`. --upload uploads the local folder that `traces` names.

Exit status of 'submit --wait': 2 the scenario is wrong; 3 nothing fits; 1 it failed otherwise or was
cancelled.

Examples:
  asap sessions submit examples/llama-3.1-70b-64xh100.json --label team=pretraining --wait
  asap sessions list --state running
  asap sessions events ID
  asap sessions decide ID approve --proposal 1
  asap sessions decide ID submit --plan tp=8,pp=1 --comment "the racks changed"
  asap sessions report ID --format markdown"""


def add_arguments(parser: ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    def add(name: str, about: str) -> ArgumentParser:
        action = add_action(actions, name, about)
        action.add_argument("id", metavar="ID", help="the session, as 'submit' and 'list' print it")
        return action

    _add_submit_options(add_action(actions, "submit", "submit a scenario, and print the session's ID"))
    _add_list_options(add_action(actions, "list", "sessions, newest first"))
    add("show", "one session: its state, verdict and speed-up")
    events = add("events", "its events, live until it ends")
    events.add_argument("--after", type=int, default=0, metavar="N", help="start after this event (0)")
    report = add("report", "the report of a completed session")
    report.add_argument(
        "--format", choices=tuple(FORMS), default="markdown", help="how to print it (markdown)"
    )
    export = add("export", "a proposal as the configuration of a framework")
    export.add_argument(
        "--format", required=True, metavar="NAME", help="a format that 'asap export --help' lists"
    )
    export.add_argument(
        "--proposal", type=positive_number, metavar="RANK", help="which one (the approved one, else 1)"
    )
    _add_decide_options(add("decide", "approve, reject, edit a proposal, or submit a plan of your own"))
    add("cancel", "stop a session")
    add("retry", "run a failed or cancelled session again")
    add("delete", "delete a session that has ended")
    add_server(actions)


def _add_submit_options(parser: ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a scenario as JSON; - for standard input")
    parser.add_argument(
        "--label", action="append", metavar="NAME=VALUE", help="a label to find it by; may be repeated"
    )
    parser.add_argument("--upload", action="store_true", help="upload the folder that `traces` names")
    parser.add_argument("--wait", action="store_true", help="wait for the end and print the report")
    parser.add_argument(
        "--idempotency-key", metavar="TEXT", help="submitting again with the same key has no effect"
    )


def _add_list_options(parser: ArgumentParser) -> None:
    parser.add_argument("--state", choices=STATES, help="only sessions in this state")
    parser.add_argument("--device", metavar="NAME", help="only on this device")
    parser.add_argument("--model", metavar="NAME", help="only of this model")
    parser.add_argument(
        "--label",
        action="append",
        metavar="NAME[=VALUE]",
        help="only with this label; may be repeated (all must match)",
    )
    parser.add_argument("--text", metavar="WORDS", help="only those that contain these words")
    parser.add_argument(
        "--limit", type=positive_number, default=50, metavar="N", help="at most this many (50)"
    )


def _add_decide_options(parser: ArgumentParser) -> None:
    parser.add_argument("decision", choices=DECISIONS, metavar="DECISION", help=", ".join(DECISIONS))
    parser.add_argument("--proposal", type=positive_number, metavar="RANK", help="which one (1)")
    parser.add_argument(
        "--plan", metavar="FIELDS", help="with edit and submit: name=value,... or a JSON object"
    )
    parser.add_argument("--comment", metavar="TEXT", help="why")


def run(args: Namespace) -> int:
    with connect(args.server) as client:
        return ACTIONS[args.action](client, args) or 0


def _submit(client: "Client", args: Namespace) -> None:
    body = _body(client, args)
    session = client.submit(body, args.idempotency_key)
    if args.wait:
        _finish(client, client.wait(session.id), as_json=args.json)
    elif args.json:
        write_json_line(session.raw)
    else:
        sys.stdout.write(f"{session.id}\n")


def _body(client: "Client", args: Namespace) -> JsonObject:
    body = dict(read_object(args.file, MAX_SCENARIO_BYTES))
    if args.label:
        labels = body.get("labels") or {}
        if not isinstance(labels, dict):
            raise InputError("labels", labels, "must be an object of names and values")
        body["labels"] = {**labels, **dict(map(_label, args.label))}
    if args.upload:
        folder = body.get("traces")
        if not isinstance(folder, str) or not Path(folder).is_dir():
            raise InputError("traces", folder, "must name a local folder with --upload")
        body["traces"] = client.upload(Path(folder)).reference
    return body


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InputError("--label", text, "allowed: name=value")
    return name, value


def _finish(client: "Client", session: "Session", *, as_json: bool) -> None:
    """Prints the report of a completed session, or the session if it waits for a decision."""
    if not check_ended(session):
        _print_session(session, as_json=as_json)
    elif as_json:
        write_json_line(client.report(session.id))
    else:
        write_document(client.report_text(session.id))


def _list(client: "Client", args: Namespace) -> None:
    filters = {name: getattr(args, name) for name in ("state", "device", "model", "label", "text")}
    page = client.sessions(**filters, limit=args.limit)
    if args.json:
        for session in page.items:
            write_json_line(session.raw)
        return

    print_sessions(page)


def _show(client: "Client", args: Namespace) -> None:
    _print_session(client.session(args.id), as_json=args.json)


def _print_session(session: "Session", *, as_json: bool) -> None:
    if as_json:
        write_json_line(session.raw)
    else:
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
    rank = args.proposal or client.report(args.id).get("chosen") or 1
    export = client.export(args.id, rank, args.format)
    if args.json:
        write_json_line(export.raw)
        return
    sys.stdout.write(export.text)
    for note in export.notes:
        sys.stderr.write(f"asap: note: {note}\n")


def _decide(client: "Client", args: Namespace) -> None:
    fields = {"action": args.decision, "proposal": args.proposal, "comment": args.comment}
    decision = {name: value for name, value in fields.items() if value is not None}
    if args.plan:
        decision["plan"] = parse_fields(args.plan, "--plan")
    _print_session(client.decide(args.id, decision), as_json=args.json)


def _delete(client: "Client", args: Namespace) -> None:
    client.delete(args.id)
    if args.json:
        write_json_line({"id": args.id, "deleted": True})


def _transition(name: str) -> Callable[["Client", Namespace], None]:
    def act(client: "Client", args: Namespace) -> None:
        _print_session(getattr(client, name)(args.id), as_json=args.json)

    return act


ACTIONS: dict[str, Callable[["Client", Namespace], int | None]] = {
    "submit": _submit,
    "list": _list,
    "show": _show,
    "events": _events,
    "report": _report,
    "export": _export,
    "decide": _decide,
    "cancel": _transition("cancel"),
    "retry": _transition("retry"),
    "delete": _delete,
}


def print_sessions(page: "SessionPage") -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not page.items:
        console.print("no sessions")
        return
    table = Table(box=None, header_style="bold")
    count = len(COLUMNS) if console.width >= WIDE else NARROW_COLUMNS
    for column, width in list(COLUMNS.items())[:count]:
        table.add_column(column, no_wrap=True, min_width=width)
    for session in page.items:
        cells = (
            session.id,
            Text(session.state, COLOURS[session.state]),
            "" if session.speedup is None else f"{session.speedup:.2f}x",
            safe_text(session.model or ""),
            f"{session.num_devices} {session.device}",
            f"{session.created_at:%Y-%m-%d %H:%M}",
            safe_text(session.owner),
        )
        table.add_row(*cells[:count])
    console.print(table)
    if page.next_cursor:
        console.print("[dim]there are more; narrow the list or raise --limit[/]")


def print_session(session: "Session") -> None:
    rows = {
        "id": session.id,
        "state": session.state + (" (cancel requested)" if session.cancel_requested else ""),
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
    print_fields(rows)


def event_line(event: "Event") -> str:
    """One line, whatever the event contains."""
    content = ", ".join(f"{name}={_brief(value)}" for name, value in event.content.items())
    line = f"{event.seq:>4}  {event.at:%H:%M:%S}  {event.node:<12} {event.kind:<10} {content}"
    printable = "".join(c if c.isprintable() else " " for c in line)
    return printable if len(printable) <= MAX_LINE_CHARACTERS else printable[: MAX_LINE_CHARACTERS - 1] + "…"


def _brief(value: object) -> object:
    return f"{value:.3g}" if isinstance(value, float) else value
