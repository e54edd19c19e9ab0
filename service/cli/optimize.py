"""`asap optimize`: the agents search every legal plan and propose three; in memory, or kept under a name."""

import json
import os
import re
import secrets
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TextIO

from service.cli.io import (
    MAX_SCENARIO_BYTES,
    locked,
    naming_arguments,
    read_bytes,
    read_goal,
    read_object,
    write_document,
    write_file,
    write_json,
    write_note,
)
from service.cli.parser import add_calibration, add_options, add_run_goal
from service.strict_json import JsonObject, parse_object
from tools.errors import InputError

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver

    from graph.events import SessionEvent
    from graph.report import Report
    from graph.request import Request
    from service.settings import Settings
    from tools.scenario import Scenario

    Checkpoints = BaseCheckpointSaver[str]

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
  asap optimize train.sh --devices "64 x H100" --save scenario.json --json > report.json
  asap optimize scenario.json --export torchtitan --out train.toml
  asap optimize --json scenario.json | jq '.proposals[0].plan'
  asap optimize --format html scenario.json > report.html
  asap optimize --session llama-70b-spring --events scenario.json 2> steps.jsonl
  asap --server http://localhost:8000 optimize scenario.json"""
FORMATS = ("table", "markdown", "html", "json")
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
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,79}")
LOCKS = "sessions"
FIRST_INPUT = "__start__"
"""Where LangGraph keeps the input until the first node has run."""


def add_request(parser: ArgumentParser) -> None:
    file = "a scenario as JSON, or with --devices a model's config.json or any configuration that 'asap "
    tokenizer = "entries of the vocabulary, if the file leaves them to a tokenizer"
    add_options(
        parser,
        ("file", "FILE", f"{file}import' reads; - for standard input"),
        ("--devices", "N x NAME", 'what to train on: "64 x H100", "8 nodes of 8 H100s", "4 p5.48xlarge" ...'),
        ("--framework", "NAME", "megatron, torchtitan, fsdp, hf, deepspeed, maxtext ... (with --devices)"),
        ("--seq-len", "LENGTH", "tokens per sequence, 8192 or 8k (with --devices)"),
        ("--global-batch-size", "BATCH", 'per step, 512 sequences or "4M tokens" (with --devices)'),
        (
            "--micro-batch-size",
            "N",
            "that a device runs at once, if the file leaves it open (with --devices)",
        ),
        ("--vocab-size", "N", f"{tokenizer} (with --devices)"),
        ("--precision", "NAME", "fp32, fp16, bf16, fp8 ... (with --devices)"),
        ("--model", "FILE", "a config.json, if FILE only names the model"),
    )


def add_arguments(parser: ArgumentParser) -> None:
    add_request(parser)
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--format", choices=FORMATS, default="table", help="how to print the report (table)")
    shape.add_argument(
        "--json",
        dest="format",
        action="store_const",
        const="json",
        help="print the report as one JSON object and nothing else",
    )
    add_options(
        parser,
        ("--export", "FORMAT", "write the first proposal as this framework's configuration into --out"),
        ("--out", "FILE", "where to"),
        ("--save", "FILE", "write the scenario as understood, for the other commands"),
        ("--session", "NAME", "keep the session under this name, or go on with it"),
        ("--events", "", "print each step as a JSON line on standard error"),
        ("--server", "URL", "let this 'asap serve' answer"),
    )
    add_run_goal(parser)
    add_calibration(parser)


def run(args: Namespace) -> None:
    if bool(args.export) != bool(args.out):
        raise InputError("--export", args.export, "needs --out FILE, and --out a format")
    if args.export:
        from tools.frameworks.formats import get_export_format

        with naming_arguments(args, {"format": "--export"}):
            get_export_format(args.export)  # before the search, not after it
    body = read_request(args)
    if goal := read_goal(body.get("run"), args):
        body["run"] = goal
    if args.server:
        run_at_server(args, body)
        return
    from graph.request import parse_request

    request = parse_request(body)
    report = run_locally(args, request)
    if args.devices is not None and args.file != "-":
        report = naming_file(report, args.file)
    print_report(args.format, request.scenario, report)
    save_files(args, request.scenario, report)


def naming_file(report: "Report", file: str) -> "Report":
    """With the two runs' commands for the user's own configuration, which the report itself cannot know."""
    import shlex

    from tools.frameworks.start import is_scenario
    from tools.recommend.switch import with_commands

    if is_scenario(read_bytes(file, MAX_SCENARIO_BYTES).decode("utf-8", "replace")):
        return report  # of the job's own file nothing is known
    name = shlex.quote(os.path.relpath(file))  # as `asap patch` and git want it
    proposals = [
        entry.model_copy(update={"two_runs": with_commands(entry.two_runs, entry.rank, name)})
        if entry.two_runs
        else entry
        for entry in report.proposals
    ]
    return report.model_copy(update={"proposals": proposals})


def read_request(args: Namespace) -> JsonObject:
    """The scenario of the file, or made from a configuration and --devices."""
    if args.devices is None:
        return read_object(args.file)
    from service.cli.import_plan import print_notes, read_amounts, read_model
    from tools.frameworks import ImportOptions
    from tools.frameworks.python_config import module_finder
    from tools.frameworks.start import is_scenario, start_scenario
    from tools.frameworks.words import parse_devices

    count, device, per_node = parse_devices(args.devices, "--devices")
    data = read_bytes(args.file, MAX_SCENARIO_BYTES)
    text = data.decode("utf-8", "replace")
    if is_scenario(text):
        cluster: JsonObject = {"device": device, "num_devices": count, "devices_per_node": per_node}
        return {**parse_object(data, args.file), "cluster": cluster}
    names = ("precision", "micro_batch_size", "vocab_size", "seq_len", "global_batch_size", "framework")
    options = {name: getattr(args, name) for name in names} | read_amounts(args)
    finder = module_finder(args.file)
    stated = ImportOptions(read_model(args.model), device, count, per_node, find_module=finder, **options)
    with naming_arguments(args, dict.fromkeys(("cluster.device", "cluster.num_devices"), "--devices")):
        start = start_scenario(text, None, stated)
    for key, value in start.assumed.items():
        write_note(f"assumed: {key} {value} (--{key.replace('_', '-')} states another)")
    print_notes(start.imported)
    return dict(start.imported.scenario)


def run_at_server(args: Namespace, body: JsonObject) -> None:
    """Submits it and waits; the report is printed as if it had been made here."""
    for option, why in (
        ("session", "a server keeps every session"),
        ("calibration", "a server uses the runs reported to it"),
    ):
        if getattr(args, option):
            raise InputError(f"--{option}", getattr(args, option), f"{why}; leave one of the two out")
    from service.cli.server import check_ended, connect

    with connect(args.server) as client:
        session = client.submit(body)
        if args.events:
            for event in client.events(session.id):
                print(json.dumps(event.raw), file=sys.stderr, flush=True)
        if not check_ended(client.wait(session.id)):
            return
        report = client.report(session.id)
    from graph.report import Report
    from graph.request import parse_request

    scenario, parsed = parse_request(body).scenario, Report.model_validate(report)
    if args.format == "json":  # as the server, perhaps a newer one, wrote it
        write_json(report)
    else:
        print_report(args.format, scenario, parsed)
    save_files(args, scenario, parsed)


def run_locally(args: Namespace, request: "Request") -> "Report":
    """Without a name it leaves nothing behind; under one it goes on where it was, or repeats its report."""
    from service.cli.calibrate import read_calibration
    from service.runtime import check_tune, open_context
    from service.settings import load_settings

    name, settings = args.session, load_settings()
    approval, is_tuned = request.options.approval, request.options.mode == "tune"
    if approval == "person":
        raise InputError("approval", approval, "asap optimize cannot ask a person; asap serve can")
    if is_tuned:
        check_tune(settings, request)
    calibration, runs = read_calibration(args.calibration)
    from graph.session import Session  # the agents, once the input is known to be right

    if name is None and is_tuned:  # its trials' jobs must be found again under a name
        name = f"tune-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        write_note(f"session {name}; if interrupted, go on with --session {name}")
    with ExitStack() as stack:
        watch = stack.enter_context(watching(sys.stderr, events=args.events))
        saver = (
            stack.enter_context(opened_session(settings, name, request.scenario))
            if name is not None
            else None
        )
        context = open_context(settings, saves_cases=saver is not None)
        context = replace(
            context,
            progress=watch.progress,
            limits=context.limits.within(request.options.budget),
            calibration=calibration or context.calibration,
            runs=runs,
        )
        report = Session(name or "optimize", context, saver).run(request, watch.event).report
    if report is None:
        raise InputError("--session", name, "waits for a decision; asap serve takes it")
    return report


@contextmanager
def opened_session(settings: "Settings", name: str, scenario: "Scenario") -> "Iterator[Checkpoints]":
    """Its checkpoints, one after each node, while no other process runs it."""
    if not NAME.fullmatch(name):  # it becomes part of a case's id and of a file's name
        rule = "allowed: up to 80 of a-z, 0-9, '_' and '-', first a letter or digit"
        raise InputError("--session", name, rule)
    from service.checkpoints import open_checkpoints
    from service.settings import make_data_folder

    folder = make_data_folder(settings.data_dir) / LOCKS
    folder.mkdir(exist_ok=True)
    with locked(folder / f"{name}.lock") as is_ours, open_checkpoints(settings) as saver:
        if not is_ours:
            raise InputError("--session", name, "is running in another process; wait for it")
        if earlier := saver.get_tuple({"configurable": {"thread_id": name}}):
            values = earlier.checkpoint["channel_values"]
            if values.get(FIRST_INPUT, values).get("request") not in (None, scenario):
                raise InputError("--session", name, "is about another scenario; choose another name")
        yield saver


class Watch(NamedTuple):
    """What is called while a session runs."""

    progress: Callable[[float], None] | None = None
    """The share of the search that is done."""
    event: "Callable[[SessionEvent], None] | None" = None


@contextmanager
def watching(stream: TextIO, *, events: bool = False) -> Iterator[Watch]:
    """Events as JSON lines if they are wanted, else a line of progress on a terminal, nothing elsewhere."""
    if events:
        yield Watch(event=lambda event: print(event.model_dump_json(), file=stream, flush=True))
        return
    if not stream.isatty():
        yield Watch()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from graph.events import NodeStarted, ToolCalled

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(file=stream), transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def show_event(event: "SessionEvent") -> None:
            if isinstance(event, NodeStarted):
                bar.update(task, description=AGENTS.get(event.node, event.node), total=None, completed=0)
            elif isinstance(event, ToolCalled) and event.tool == "search_plans":
                bar.update(task, description="proposal agent: looking for more plans", total=None)

        yield Watch(lambda share: bar.update(task, completed=share, total=1.0), show_event)


def save_files(args: Namespace, scenario: "Scenario", report: "Report") -> None:
    """What --save and --export ask for."""
    if args.save:
        text = json.dumps(scenario.model_dump(mode="json"), indent=2, allow_nan=False)
        write_file(args.save, text + "\n", "--save")
    if args.export and report.proposals:
        from tools.frameworks import export_plan

        with naming_arguments(args, {"format": "--export"}):
            export = export_plan(report.proposals[0].of(scenario), args.export)
        write_file(args.out, export.text, "--out")
        for note in export.notes:
            write_note(f"note: {note}")


def print_report(form: str, scenario: "Scenario", report: "Report") -> None:
    if form == "json":
        write_json(report.model_dump(mode="json"))
        return
    from service.cli.optimize_tables import print_tables
    from service.render.report import html_report, markdown_report
    from service.render.view import view_of

    view = view_of(scenario, report)
    if form == "table":
        print_tables(view)
    else:
        write_document((markdown_report if form == "markdown" else html_report)(view))
