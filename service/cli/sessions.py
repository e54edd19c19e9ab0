"""`asap sessions`: submit to a server, follow, fetch and decide."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from service.cli.io import (
    parse_fields,
    print_fields,
    read_object,
    safe_text,
    write_document,
    write_json,
    write_note,
)
from service.cli.parser import add_action, add_actions, add_options, add_server
from service.cli.server import FORMS, add_report_format, check_ended, connect
from tools.errors import InputError

if TYPE_CHECKING:
    from asap_client.client import Client
    from asap_client.generated.models import Event, Session, SessionPage

COLOURS = {
    "queued": "dim",
    "running": "cyan",
    "waiting_approval": "yellow",
    "completed": "green",
    "failed": "red",
    "cancelled": "dim",
}
DECISIONS = ("approve", "reject", "edit", "submit")
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
  asap sessions fork ID --step 14 --constraints '{"tp": [4, 8]}' --wait
  asap sessions report ID --format markdown"""


def add_arguments(parser: ArgumentParser) -> None:
    actions = add_actions(parser)

    def add(name: str, about: str, act: "Callable[[Client, Namespace], None]") -> ArgumentParser:
        action = add_action(actions, name, about, act)
        action.add_argument("id", metavar="ID", help="the session, as 'submit' and 'list' print it")
        return action

    submitting = add_action(actions, "submit", "submit a scenario, and print the session's ID", submit)
    add_options(
        submitting,
        ("file", "FILE", "a scenario as JSON; - for standard input"),
        ("--label", "NAME=VALUE ...", "a label to find it by; may be repeated"),
        ("--upload", "", "upload the folder that `traces` names"),
        ("--wait", "", "wait for the end and print the report"),
        ("--idempotency-key", "TEXT", "submitting again with the same key has no effect"),
    )
    listing = add_action(actions, "list", "sessions, newest first", list_sessions)
    listing.add_argument("--state", choices=tuple(COLOURS), help="only sessions in this state")
    add_options(
        listing,
        ("--device", "NAME", "only on this device"),
        ("--model", "NAME", "only of this model"),
        ("--label", "NAME[=VALUE] ...", "only with this label; may be repeated (all must match)"),
        ("--text", "WORDS", "only those that contain these words"),
        ("--limit", "N", "at most this many (50)"),
    )
    listing.set_defaults(limit=50)
    add("show", "one session: its state, verdict and speed-up", show)
    following = add("events", "its events, live until it ends", follow)
    following.add_argument("--after", type=int, default=0, metavar="N", help="start after this event (0)")
    reporting = add("report", "the report of a completed session", report)
    add_report_format(reporting)
    exporting = add("export", "a proposal as the configuration of a framework", export)
    formats = "a format that 'asap export --help' lists"
    exporting.add_argument("--format", required=True, metavar="NAME", help=formats)
    add_options(exporting, ("--proposal", "RANK", "which one (the approved one, else 1)"))
    deciding = add("decide", "approve, reject, edit a proposal, or submit a plan of your own", decide)
    deciding.add_argument("decision", choices=DECISIONS, metavar="DECISION", help=", ".join(DECISIONS))
    add_options(
        deciding,
        ("--proposal", "RANK", "which one (1)"),
        ("--plan", "FIELDS", "with edit and submit: name=value,... or a JSON object"),
        ("--comment", "TEXT", "why"),
    )
    forking = add("fork", "go on from one of its steps with another answer, as a new session", fork)
    add_options(
        forking,
        ("--step", "N", "the number of an event: its agent runs again (as late as the changes allow)"),
        ("--notes", "TEXT", "in place of its notes"),
        ("--constraints", "FIELDS", "in place of its constraints: name=value,... or a JSON object"),
        ("--answers", "JSON", 'to questions of the agents: {"find_cause": {...}}'),
        ("--plan", "FIELDS", "decide on a plan of your own instead"),
        ("--wait", "", "wait for the end and print the report"),
    )
    add("cancel", "stop a session", show)
    add("retry", "run a failed or cancelled session again", show)
    add("delete", "delete a session that has ended", delete)
    for action in actions.choices.values():
        add_server(action)


def run(args: Namespace) -> None:
    with connect(args.server) as client:
        args.act(client, args)


def submit(client: "Client", args: Namespace) -> None:
    body = dict(read_object(args.file))
    if args.label:
        labels = body.get("labels") or {}
        if not isinstance(labels, dict):
            raise InputError("labels", labels, "must be an object of names and values")
        pairs = [text.partition("=") for text in args.label]
        for name, equals, value in pairs:
            if not equals or not name:
                raise InputError("--label", name + equals + value, "allowed: name=value")
        body["labels"] = labels | {name: value for name, _, value in pairs}
    if args.upload:
        folder = body.get("traces")
        if not isinstance(folder, str) or not Path(folder).is_dir():
            raise InputError("traces", folder, "must name a local folder with --upload")
        body["traces"] = client.upload(Path(folder)).reference
    print_submitted(client, client.submit(body, args.idempotency_key), args)


def fork(client: "Client", args: Namespace) -> None:
    fields = {
        "step": args.step,
        "notes": args.notes,
        "constraints": parse_fields(args.constraints, "--constraints") if args.constraints else None,
        "answers": parse_fields(args.answers, "--answers") if args.answers else None,
        "decision": {"action": "submit", "plan": parse_fields(args.plan, "--plan")} if args.plan else None,
    }
    stated = {name: value for name, value in fields.items() if value is not None}
    print_submitted(client, client.fork(args.id, stated), args)


def print_submitted(client: "Client", session: "Session", args: Namespace) -> None:
    """With --wait it prints the report, or the session if that waits for a decision."""
    if args.wait:
        session = client.wait(session.id)
        if not check_ended(session):
            print_session(session, args)
        elif args.json:
            write_json(client.report(session.id))
        else:
            write_document(client.report_text(session.id))
    elif args.json:
        write_json(session.raw)
    else:
        sys.stdout.write(f"{session.id}\n")


def list_sessions(client: "Client", args: Namespace) -> None:
    page = client.sessions(
        state=args.state,
        device=args.device,
        model=args.model,
        label=args.label,
        text=args.text,
        limit=args.limit,
    )
    if args.json:
        write_json(*(session.raw for session in page.items))
    else:
        print_sessions(page)


def show(client: "Client", args: Namespace) -> None:
    """One session, as it is once the action is done."""
    act = {"cancel": client.cancel, "retry": client.retry}.get(args.action, client.session)
    print_session(act(args.id), args)


def follow(client: "Client", args: Namespace) -> None:
    for event in client.events(args.id, args.after):
        if args.json:
            write_json(event.raw)
        else:
            sys.stdout.write(event_line(event) + "\n")
        sys.stdout.flush()


def report(client: "Client", args: Namespace) -> None:
    if args.json:
        write_json(client.report(args.id))
    else:
        write_document(client.report_text(args.id, FORMS[args.format]))


def export(client: "Client", args: Namespace) -> None:
    rank = args.proposal or client.report(args.id).get("chosen", 1)
    if rank is None:
        raise InputError("--proposal", "none", "nothing is to be changed: name the one to export")
    exported = client.export(args.id, rank, args.format)
    if args.json:
        write_json(exported.raw)
        return
    sys.stdout.write(exported.text)
    for note in exported.notes:
        write_note(f"note: {note}")


def decide(client: "Client", args: Namespace) -> None:
    fields = {
        "action": args.decision,
        "proposal": args.proposal,
        "comment": args.comment,
        "plan": parse_fields(args.plan, "--plan") if args.plan else None,
    }
    decision = {name: value for name, value in fields.items() if value is not None}
    print_session(client.decide(args.id, decision), args)


def delete(client: "Client", args: Namespace) -> None:
    client.delete(args.id)
    if args.json:
        write_json({"id": args.id, "deleted": True})


def print_sessions(page: "SessionPage") -> None:
    from rich.console import Console
    from rich.table import Table

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
            safe_text(session.state, COLOURS[session.state]),
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


def print_session(session: "Session", args: Namespace) -> None:
    if args.json:
        write_json(session.raw)
        return
    origin = session.forked_from
    print_fields(
        {
            "id": session.id,
            "state": session.state + (" (cancel requested)" if session.cancel_requested else ""),
            "model": session.model,
            "devices": f"{session.num_devices} {session.device}",
            "submitted": f"{session.created_at:%Y-%m-%d %H:%M:%S} UTC by {session.owner}",
            "forked from": origin and f"{origin['session']}, event {origin['step']} ({origin['node']})",
            "labels": ", ".join(f"{name}={value}" for name, value in session.labels.items()),
            "bottleneck": session.bottleneck,
            "verdict": session.verdict,
            "speed-up": None if session.speedup is None else f"{session.speedup:.2f}x predicted",
            "measured": None if session.measured_speedup is None else f"{session.measured_speedup:.2f}x",
            "error": session.error["message"] if session.error else None,
        }
    )


def event_line(event: "Event") -> str:
    """One line, whatever the event contains."""
    line = f"{event.seq:>4}  {event.at:%H:%M:%S}  {event.node:<12} {event.kind:<10} {event.summary}"
    printable = "".join(c if c.isprintable() else " " for c in line)
    return printable if len(printable) <= MAX_LINE_CHARACTERS else printable[: MAX_LINE_CHARACTERS - 1] + "…"
