"""`asap optimize`: the agents diagnose a scenario's plan, search every legal plan and propose three; in
memory, or saved in the data folder under a name.
"""

import json
import re
import secrets
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from service.cli.io import MAX_SCENARIO_BYTES, read_bytes, read_object, write_document, write_json_line
from service.cli.parser import add_calibration, positive_number
from service.strict_json import JsonObject, parse_object
from tools.errors import InputError

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver

    from graph.context import Event
    from graph.report import Report
    from graph.request import Request
    from service.settings import Settings
    from tools.calibrate.runs import Run
    from tools.cost.calibration import Calibration
    from tools.scenario import Scenario


AGENTS = {
    "coordinator": "coordinator: deciding what comes next",
    "analyzer": "analyzer: finding what limits the plan",
    "proposal": "proposal agent: searching every legal plan",
    "verify": "verification: computing every number again",
    "approve": "the policy: what may be measured",
    "trial": "trial: measuring a plan on the cluster",
    "learn": "keeping the outcome",
    "report": "writing the report",
}


@dataclass(frozen=True)
class ProgressCallbacks:
    """Called while a session runs, and the calibration it starts with."""

    progress: Callable[[float], None] | None = None
    """The share of the search that is done."""
    event: "Callable[[Event], None] | None" = None
    calibration: "Calibration | None" = None
    runs: "tuple[Run, ...]" = ()


@contextmanager
def watching(stream: TextIO) -> Iterator[ProgressCallbacks]:
    """A line on a terminal, nothing elsewhere."""
    if not stream.isatty():
        yield ProgressCallbacks()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(file=stream), transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def show_event(event: "Event") -> None:
            if event["kind"] == "started":
                bar.update(
                    task, description=AGENTS.get(event["node"], event["node"]), total=None, completed=0
                )
            elif event.get("tool") == "search_plans":
                bar.update(task, description="proposal agent: looking for more plans", total=None)

        yield ProgressCallbacks(lambda share: bar.update(task, completed=share, total=1.0), show_event)


NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,79}")
LOCKS = "sessions"
FIRST_INPUT = "__start__"
"""Where LangGraph keeps the input until the first node has run."""


def check_name(name: str) -> None:
    """It becomes part of a case's id and of a file's name."""
    if not NAME.fullmatch(name):
        raise InputError(
            "--session", name, "allowed: up to 80 of a-z, 0-9, '_' and '-', first a letter or digit"
        )


def default_session_name() -> str:
    """For a session without a name: its trials' jobs must be found again under it."""
    return f"tune-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"


def run_once(request: "Request", watch: ProgressCallbacks) -> "Report":
    """Leaves nothing behind; what the installation has learnt is read."""
    from service.settings import load_settings

    return _run("optimize", request, watch, load_settings(), None)


def run_kept(name: str, request: "Request", watch: ProgressCallbacks) -> "Report":
    """A checkpoint after each node; the same name goes on where it was, or repeats its report."""
    from service.checkpoints import open_checkpoints
    from service.settings import load_settings, make_data_folder

    settings = load_settings()
    with (
        _exclusive_lock(make_data_folder(settings.data_dir) / LOCKS, name),
        open_checkpoints(settings) as saver,
    ):
        known = _known_request(saver, name)
        if known is not None and known != request.scenario:
            raise InputError("--session", name, "is about another scenario; choose another name")
        return _run(name, request, watch, settings, saver)


def _run(
    id: str,
    request: "Request",
    watch: ProgressCallbacks,
    settings: "Settings",
    saver: "BaseCheckpointSaver[Any] | None",
) -> "Report":
    from graph.session import Session
    from service.runtime import open_context

    context = open_context(settings, saves_cases=saver is not None)
    calibration, limits = watch.calibration or context.calibration, context.limits.within(request.budget)
    context = replace(
        context, progress=watch.progress, limits=limits, calibration=calibration, runs=watch.runs
    )
    report = Session(id, context, saver).run(request, watch.event).report
    if report is None:
        raise InputError("--session", id, "waits for a decision; asap serve takes it")
    return report


def _known_request(saver: "BaseCheckpointSaver[Any]", name: str) -> "Scenario | None":
    kept = saver.get_tuple({"configurable": {"thread_id": name}})
    if kept is None:
        return None
    values = kept.checkpoint["channel_values"]
    request: Scenario | None = values.get(FIRST_INPUT, values).get("request")
    return request


@contextmanager
def _exclusive_lock(folder: Path, name: str) -> Iterator[None]:
    """One process at a time for a session; the lock goes with the process, however it ends."""
    import fcntl

    folder.mkdir(exist_ok=True)
    with (folder / f"{name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError("--session", name, "is running in another process; wait for it") from None
        yield


HELP = """\
Find what limits a workload, search every legal plan and propose the best, with reasons to check.

FILE holds one scenario ('asap predict --help' shows one). Its `plan` is today's configuration; leave it
out for a cold start. With --devices FILE may also be a model's config.json or a training tool's
configuration: what it leaves open is assumed, and every assumption is printed with the option that
replaces it.
Nothing is proposed that does not fit or that the framework refuses, and the training contract
(model, batch, sequence length, precision) is never changed.

`constraints` in the scenario restricts the search:
  "constraints": {"tp": [4, 8], "pp": 2}        allowed or fixed values of any plan field
  "constraints": {"tp": {"max": 8, "not": [3]}} bounds ("min", "max") and excluded values ("not")
  "constraints": {"space": "all"}               every legal plan, not only what people run
  "constraints": {"max_memory_fraction": 0.85}  share of the device's memory that may be filled
  "constraints": {"keep_checkpoint_layout": true}   tp and pp stay as they are
  "constraints": {"max_changes": 2}             at most this many fields differ from today's plan
`traces` names a folder of profiles of today's run: a measured cause outranks a computed one.
`notes` is an engineer's free text. The expert rules read plain phrasings ("keep tp", "leave 10%
memory free"), a language model the rest (ASAP_LLM_BASE_URL, ASAP_LLM_MODEL); what was understood is
shown, and what is unclear is asked.

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
  asap optimize config.json --devices "64 x H100"
  asap optimize --json scenario.json | jq '.proposals[0].plan'
  asap optimize --format html scenario.json > report.html
  asap optimize --session llama-70b-spring --events scenario.json 2> steps.jsonl
  asap --server http://localhost:8000 optimize scenario.json"""
FORMATS = ("table", "markdown", "html", "json")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "file",
        metavar="FILE",
        help="a scenario as JSON, or with --devices a model's config.json or any configuration that 'asap "
        "import' reads; - for standard input",
    )
    parser.add_argument("--devices", metavar="N x NAME", help='what to train on, for example "64 x H100"')
    parser.add_argument(
        "--framework",
        metavar="NAME",
        help="megatron, torchtitan, fsdp, hf, deepspeed, maxtext ... (with --devices)",
    )
    for name, what in (
        ("seq-len", "tokens per sequence"),
        ("global-batch-size", "sequences per step"),
        ("vocab-size", "entries of the vocabulary, if the file leaves them to a tokenizer"),
    ):
        parser.add_argument(f"--{name}", type=positive_number, metavar="N", help=f"{what} (with --devices)")
    parser.add_argument("--precision", metavar="NAME", help="fp32, fp16, bf16, fp8 ... (with --devices)")
    parser.add_argument("--model", metavar="FILE", help="a config.json, if FILE only names the model")
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
    add_calibration(parser)


def run(args: Namespace) -> int:
    scenario = _read_scenario(args)
    if args.server:
        return _run_there(args, scenario)
    from service.cli.calibrate import read_calibration_and_runs

    request, (calibration, runs) = _request(scenario), read_calibration_and_runs(args.calibration)
    with _watching(args.events) as watch:
        report = _answer(args.session, request, replace(watch, calibration=calibration, runs=runs))
    _print(args.format, scenario, report)
    return 0


def _read_scenario(args: Namespace) -> JsonObject:
    """The scenario of the file, or made from a configuration and --devices."""
    if args.devices is None:
        return read_object(args.file, MAX_SCENARIO_BYTES)
    from tools.frameworks.formats import is_scenario, parse_devices

    count, device = parse_devices(args.devices, "--devices")
    data = read_bytes(args.file, MAX_SCENARIO_BYTES)
    text = data.decode("utf-8", "replace")
    if is_scenario(text):
        cluster: JsonObject = {"device": device, "num_devices": count}
        return {**parse_object(data, args.file), "cluster": cluster}
    return _imported(args, text, count, device)


def _imported(args: Namespace, text: str, count: int, device: str) -> JsonObject:
    """From any configuration that `asap import` reads; assumptions go to standard error."""
    from service.cli.import_plan import print_notes, read_text
    from tools.frameworks import ImportOptions
    from tools.frameworks.formats import start_scenario
    from tools.frameworks.reading import parse_json

    stated = ImportOptions(
        model=parse_json(read_text(args.model, "--model")) if args.model else None,
        device=device,
        num_devices=count,
        precision=args.precision,
        vocab_size=args.vocab_size,
        seq_len=args.seq_len,
        global_batch_size=args.global_batch_size,
        framework=args.framework,
    )
    start = start_scenario(text, None, stated)
    for key, value in start.assumed.items():
        option = key.replace("_", "-")
        print(f"asap: assumed: {key} {value} (--{option} states another)", file=sys.stderr)
    print_notes(start.imported)
    return dict(start.imported.scenario)


def _run_there(args: Namespace, scenario: JsonObject) -> int:
    """Submits it and waits; the report is printed as if it had been made here."""
    for option, why in (
        ("session", "a server keeps every session"),
        ("calibration", "a server uses the runs reported to it"),
    ):
        if getattr(args, option):
            raise InputError(f"--{option}", getattr(args, option), f"{why}; leave one of the two out")
    from service.cli.io import check_ended, connect

    with connect(args.server) as client:
        session = client.submit(dict(scenario))
        if args.events:
            for event in client.events(session.id):
                print(json.dumps(event.raw), file=sys.stderr, flush=True)
        ended = client.wait(session.id)
        if not check_ended(ended):
            return 0
        report = client.report(ended.id)
    if args.format == "json":  # as the server, perhaps a newer one, wrote it
        write_json_line(report)
    else:
        from graph.report import Report

        _print(args.format, scenario, Report.model_validate(report))
    return 0


def _request(scenario: JsonObject) -> "Request":
    from graph.request import parse_request

    request = parse_request(scenario)
    if request.approval == "person":
        raise InputError("approval", request.approval, "asap optimize cannot ask a person; asap serve can")
    if request.mode == "tune":
        from service.runtime import check_tune
        from service.settings import load_settings

        check_tune(load_settings(), request)
    return request


def _answer(session: str | None, request: "Request", watch: ProgressCallbacks) -> "Report":
    if session is None and request.mode == "tune":
        session = default_session_name()
        print(f"asap: session {session}; if interrupted, go on with --session {session}", file=sys.stderr)
    if session is None:
        return run_once(request, watch)
    check_name(session)
    return run_kept(session, request, watch)


@contextmanager
def _watching(events: bool) -> Iterator[ProgressCallbacks]:
    if events:
        yield ProgressCallbacks(
            event=lambda event: print(json.dumps(event, default=str), file=sys.stderr, flush=True)
        )
        return
    with watching(sys.stderr) as watch:
        yield watch


def _print(form: str, scenario: JsonObject, report: "Report") -> None:
    if form == "json":
        write_json_line(report.model_dump(mode="json"))
    elif form == "table":
        from service.cli.optimize_tables import print_report

        print_report(scenario, report)
    elif form == "markdown":
        from service.render.report import markdown_report

        write_document(markdown_report(scenario, report))
    else:
        from service.render.report import html_report

        write_document(html_report(scenario, report))
