"""`asap optimize`: the agents find what limits a scenario's plan, search every legal one and propose three.

Reads, runs and prints only; the work is that of `graph` and `tools`, the words are those of `service.report`.
"""

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from service.cli.io import MAX_SCENARIO_BYTES, read_object, write_document, write_json_line
from service.cli.optimize_progress import Watch, watching
from tools.errors import InputError

if TYPE_CHECKING:
    from graph.request import Request

HELP = """\
Find what limits a workload, search every legal plan and propose the best, with reasons to check.

FILE holds one scenario ('asap predict --help' shows one). Its `plan` is today's configuration; leave it
out for a cold start.
Nothing is proposed that does not fit or that the framework refuses, and the training contract
(model, batch, sequence length, precision) is never changed.

`constraints` in the scenario restricts the search:
  "constraints": {"tp": [4, 8], "pp": 2}        allowed or fixed values of any plan field
  "constraints": {"tp": {"max": 8, "not": [3]}} bounds ("min", "max") and excluded values ("not")
  "constraints": {"space": "all"}               "practice" (default) or "all"; no effect yet
  "constraints": {"max_memory_fraction": 0.85}  share of the device's memory that may be filled
  "constraints": {"keep_checkpoint_layout": true}   tp and pp stay as they are
  "constraints": {"max_changes": 2}             at most so many fields differ from today's plan
`traces` names a folder of profiles of today's run: a measured cause outranks a computed one.
`notes` is an engineer's free text. A language model reads it (ASAP_LLM_BASE_URL, ASAP_LLM_MODEL);
what it understood is shown. Without one the expert rules answer, and notes are kept unread.

A run leaves nothing behind. With --session it is kept in the data folder (ASAP_DATA_DIR, .asap):
a killed run goes on where it was, a finished one prints its report again, and its outcome is
remembered as a case for later runs.

With "mode": "tune" the plans are measured, not only predicted: today's plan first (in a cold start
the framework's own), then the best proposal, as short jobs from a registered launch template
(ASAP_LAUNCH_TEMPLATES, ASAP_LAUNCH_TEMPLATE); each result makes the next prediction better, until
no further gain is expected. Such a run is always kept as a session.
  "budget": {"device_hours": 2, "trials": 5}    what its trials may take at most
  "approval": "policy", "policy": {"fields": ["micro_batch_size", "recompute"]}
                                                trials change these fields of the plan only

Exit status 3: nothing legal fits, and the message says what would make it fit.

Examples:
  asap optimize examples/llama-3.1-70b-64xh100.json
  asap optimize --json scenario.json | jq '.proposals[0].plan'
  asap optimize --format html scenario.json > report.html
  asap optimize --session llama-70b-spring --events scenario.json 2> steps.jsonl
  asap --server http://localhost:8000 optimize scenario.json"""
FORMATS = ("table", "markdown", "html", "json")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a scenario as JSON; - for standard input")
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--format", choices=FORMATS, default="table", help="how to print the report (table)")
    shape.add_argument(
        "--json",
        dest="format",
        action="store_const",
        const="json",
        help="print the report as one JSON object and nothing else",
    )
    parser.add_argument(
        "--session", metavar="NAME", help="keep the session under this name, or go on with it"
    )
    parser.add_argument(
        "--events", action="store_true", help="print each step as a JSON line on standard error"
    )
    parser.add_argument("--server", metavar="URL", help="let this 'asap serve' answer")


def run(args: Namespace) -> int:
    scenario = read_object(args.file, MAX_SCENARIO_BYTES)
    if args.server:
        return _run_there(args, scenario)
    request = _request(scenario)
    with _watching(args.events) as watch:
        report = _answer(args.session, request, watch)
    _print(args.format, scenario, report)
    return 0


def _run_there(args: Namespace, scenario: Mapping[str, Any]) -> int:
    """Submits it and waits; the report is printed as if it had been made here."""
    if args.session:
        raise InputError("--session", args.session, "a server keeps every session; leave one of the two out")
    from service.cli.server import connect, has_report

    with connect(args.server) as client:
        session = client.submit(dict(scenario))
        if args.events:
            for event in client.events(session.id):
                print(json.dumps(event.model_dump(mode="json")), file=sys.stderr, flush=True)
        ended = client.wait(session.id)
        if has_report(ended):
            _print(args.format, scenario, client.report(ended.id))
    return 0


def _request(scenario: Mapping[str, Any]) -> "Request":
    from graph.request import parse_request

    request = parse_request(scenario)
    if request.approval == "person":
        raise InputError("approval", request.approval, "asap optimize asks nobody; asap serve does")
    if request.mode == "tune":
        from service.settings import load_settings
        from service.trials import check_tune

        check_tune(load_settings(), request)
    return request


def _answer(session: str | None, request: "Request", watch: Watch) -> dict[str, Any]:
    from service.cli.optimize_session import check_name, name_of_trials, run_kept, run_once

    if session is None and request.mode == "tune":
        session = name_of_trials()
        print(
            f"asap: kept as session {session}; if interrupted, go on with --session {session}",
            file=sys.stderr,
        )
    if session is None:
        return run_once(request, watch)
    check_name(session)
    return run_kept(session, request, watch)


@contextmanager
def _watching(events: bool) -> Iterator[Watch]:
    if events:
        yield Watch(event=lambda event: print(json.dumps(event, default=str), file=sys.stderr, flush=True))
        return
    with watching(sys.stderr) as watch:
        yield watch


def _print(form: str, scenario: Mapping[str, Any], report: dict[str, Any]) -> None:
    if form == "json":
        write_json_line(report)
    elif form == "table":
        from service.cli.optimize_tables import print_report

        print_report(scenario, report)
    else:
        write_document(_document(form, scenario, report))


def _document(form: str, scenario: Mapping[str, Any], report: dict[str, Any]) -> str:
    if form == "markdown":
        from service.report.markdown import markdown_report

        return markdown_report(scenario, report)
    from service.report.html import html_report

    return html_report(scenario, report)
