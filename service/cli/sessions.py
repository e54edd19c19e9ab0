"""`asap sessions`: submit to a server, follow, fetch, decide. Speaks to it through `service.client`."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service.cli.fields import parse_fields
from service.cli.io import MAX_SCENARIO_BYTES, read_object, write_document, write_json_line
from service.cli.server import FORMS, connect, has_report
from service.cli.sessions_arguments import add_actions
from tools.errors import InputError

if TYPE_CHECKING:
    from service.client import Client
    from service.client_models import Session

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


def _submit(client: "Client", args: Namespace) -> None:
    body = _body(client, args)
    session = client.submit(body, args.idempotency_key)
    if args.wait:
        _finish(client, client.wait(session.id), as_json=args.json)
    elif args.json:
        write_json_line(session.model_dump(mode="json"))
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
    if not has_report(session):
        _show_one(session, as_json=as_json)
    elif as_json:
        write_json_line(client.report(session.id))
    else:
        write_document(client.report_text(session.id))


def _list(client: "Client", args: Namespace) -> None:
    filters = {name: getattr(args, name) for name in ("state", "device", "model", "label", "text")}
    page = client.sessions(**filters, limit=args.limit)
    if args.json:
        for session in page.items:
            write_json_line(session.model_dump(mode="json"))
        return
    from service.cli.sessions_tables import print_sessions

    print_sessions(page)


def _show(client: "Client", args: Namespace) -> None:
    _show_one(client.session(args.id), as_json=args.json)


def _show_one(session: "Session", *, as_json: bool) -> None:
    if as_json:
        write_json_line(session.model_dump(mode="json"))
        return
    from service.cli.sessions_tables import print_session

    print_session(session)


def _events(client: "Client", args: Namespace) -> None:
    from service.cli.sessions_tables import event_line

    for event in client.events(args.id, args.after):
        if args.json:
            write_json_line(event.model_dump(mode="json"))
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
        write_json_line(export.model_dump(mode="json"))
        return
    sys.stdout.write(export.text)
    for note in export.notes:
        sys.stderr.write(f"asap: note: {note}\n")


def _decide(client: "Client", args: Namespace) -> None:
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
    "submit": _submit,
    "list": _list,
    "show": _show,
    "events": _events,
    "report": _report,
    "export": _export,
    "decide": _decide,
    "cancel": _move("cancel"),
    "retry": _move("retry"),
    "delete": _delete,
}
