"""The actions of `asap sessions` and their options."""

from argparse import ArgumentParser

from service.cli.parser import add_action, positive_number
from service.cli.server import FORMS, add_server

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
