"""`asap ask`: a question about a finished session of a server."""

from argparse import ArgumentParser, Namespace

from service.cli.io import safe_text, write_json
from service.cli.parser import add_server
from service.cli.server import connect

HELP = """\
Ask about a finished session: why not another plan, what if another plan or other devices, what limits the
job, how sure the prediction is. With a language model at the server any question; figures come from tools.

The server is --server or ASAP_SERVER (http://127.0.0.1:8000); its key, if needed, ASAP_API_KEY.

Examples:
  asap ask ID "why not tp 8?"
  asap ask ID "what if 128 devices?" --json"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the session, as 'asap sessions list' prints it")
    parser.add_argument("question", metavar="QUESTION", help="in quotes")
    add_server(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")


def run(args: Namespace) -> None:
    with connect(args.server) as client:
        answered = client.ask(args.id, args.question)
    if args.json:
        write_json(answered)
        return
    print(safe_text(str(answered["answer"])))
    tools = ", ".join(map(str, answered["tools"])) or "the report"
    print(safe_text(f"by {answered['by']}, from {tools}"))
    for incident in answered["incidents"]:
        print(safe_text(f"note: {incident['message']}"))
