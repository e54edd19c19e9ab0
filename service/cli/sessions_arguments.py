"""The actions of `asap sessions` and their options."""

from argparse import ArgumentParser

STATES = ("queued", "running", "waiting_approval", "completed", "failed", "cancelled")
DECISIONS = ("approve", "reject", "edit", "submit")


def add_actions(parser: ArgumentParser) -> list[ArgumentParser]:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    def add(name: str, help: str, needs_id: bool = True) -> ArgumentParser:
        action: ArgumentParser = actions.add_parser(name, help=help, allow_abbrev=False)
        if needs_id:
            action.add_argument("id", metavar="ID", help="the session")
        return action

    submitting = add("submit", "submit a scenario", needs_id=False)
    listing = add("list", "sessions, newest first", needs_id=False)
    showing = add("show", "one session")
    following = add("events", "what happens in it, to its end")
    reporting = add("report", "the report of a completed session")
    exporting = add("export", "a proposal as the configuration of a framework")
    deciding = add("decide", "approve, reject, edit a proposal, or submit a plan of your own")
    simple = [
        add("cancel", "stop it"),
        add("retry", "run a failed or cancelled one again"),
        add("delete", "delete one that has ended"),
    ]
    _submit(submitting)
    _list(listing)
    following.add_argument("--after", type=int, default=0, metavar="N", help="begin after this event (0)")
    reporting.add_argument(
        "--format", choices=("markdown", "html"), default="markdown", help="how to print it (markdown)"
    )
    exporting.add_argument("--format", required=True, metavar="NAME", help="torchtitan, megatron, ...")
    exporting.add_argument("--proposal", type=int, default=1, metavar="RANK", help="which one (1)")
    _decide(deciding)
    return [submitting, listing, showing, following, reporting, exporting, deciding, *simple]


def _submit(parser: ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a scenario as JSON; - for standard input")
    parser.add_argument("--label", action="append", metavar="NAME=VALUE", help="to find it again by")
    parser.add_argument("--upload", action="store_true", help="upload the folder that `traces` names")
    parser.add_argument("--wait", action="store_true", help="wait for the end and print the report")
    parser.add_argument(
        "--idempotency-key", metavar="TEXT", help="submitting again with the same key submits nothing"
    )


def _list(parser: ArgumentParser) -> None:
    parser.add_argument("--state", choices=STATES, help="only these")
    parser.add_argument("--device", metavar="NAME", help="of the catalogue")
    parser.add_argument("--model", metavar="NAME")
    parser.add_argument("--label", action="append", metavar="NAME[=VALUE]", help="of several all must hold")
    parser.add_argument("--text", metavar="WORDS", help="words that occur in it")
    parser.add_argument("--limit", type=int, default=50, metavar="N", help="how many at most (50)")


def _decide(parser: ArgumentParser) -> None:
    parser.add_argument("decision", choices=DECISIONS, metavar="DECISION", help=", ".join(DECISIONS))
    parser.add_argument("--proposal", type=int, metavar="RANK", help="which one (1)")
    parser.add_argument("--plan", metavar="FIELDS", help="with edit and submit: a JSON object")
    parser.add_argument("--comment", metavar="TEXT", help="why")
