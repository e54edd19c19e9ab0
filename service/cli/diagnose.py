"""`asap diagnose`: where the time of a folder of profiler traces goes, and why."""

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from service.cli.io import naming_arguments, read_scenario, write_file, write_json, write_note
from service.cli.parser import add_options
from tools.errors import InputError
from tools.hardware import get_device
from tools.model.predict import predict
from tools.scenario import Scenario
from tools.trace.classify import load_patterns, with_user_kernels
from tools.trace.compare import TraceChange, check_prediction, compare
from tools.trace.folder import FileProgress
from tools.trace.links import device_of
from tools.trace.match import match_scenario, with_match
from tools.trace.report import TraceAnalysis, analyse_folder

HELP = """\
Find where the time of profiled training steps goes, and why.

DIR is a folder of PyTorch profiler traces, one per rank (*.json, *.json.gz). Exports of Nsight Systems
(*.sqlite), JAX profiles (*.xplane.pb) and rank summaries of 'asap profile' are read too. A file that cannot
be read is listed with the reason; the others are analysed.

With --scenario the traces are checked against that job: device, ranks, groups, precision, shapes, step time.
Traces of another job are the first finding, and no prediction is compared with them. If they agree, the
measured step is compared with the predicted one, term by term, and the cost model is calibrated to this
cluster: 'asap predict --calibration FILE' takes what --calibration-out wrote.

With --against the steps of DIR are compared with those of an earlier folder, place by place (module, call
stack, shape): what is new, gone, slower or more often, and what the difference comes from. The parts add up
to the difference of the steps.

Examples:
  asap diagnose examples/traces/ddp-gloo-straggler
  asap diagnose traces/ --html report.html
  asap diagnose today/ --against yesterday/
  asap diagnose traces/ --scenario job.json --calibration-out cluster.json
"""


def add_arguments(parser: ArgumentParser) -> None:
    pattern = "count kernels whose name matches as communication; may be repeated"
    add_options(
        parser,
        ("folder", "DIR", "a folder of traces, or one trace file"),
        ("--json", "", "print one JSON object"),
        ("--html", "FILE", "also write a report that opens in any browser"),
        ("--against", "DIR2", "earlier traces of the job: what changed since"),
        ("--compare", "DIR2", "later traces of the job: what changed until then"),
        ("--scenario", "FILE", "the traced job, to compare with its prediction"),
        ("--calibration-out", "FILE", "write what the traces measured of the cluster (--scenario)"),
        ("--device", "NAME", "catalogue name, if the traces do not contain it"),
        ("--communication-pattern", "REGEX ...", pattern),
        ("--workers", "N", "processes to read with"),
    )


def run(args: Namespace) -> None:
    """Analyse, print, and write the page; a folder without a readable trace is the user's error."""
    scenario = read_scenario(args.scenario, "--scenario") if args.scenario else None
    if args.calibration_out and scenario is None:
        raise InputError("--calibration-out", args.calibration_out, "needs --scenario, the traced job")
    analysis = _analyse("DIR", args.folder, args, scenario)
    other, change = _compared(analysis, args, scenario)
    match, facts = None, analysis.report.facts
    if scenario and facts:
        predicted_s = predict([scenario])[0].step_time_s if scenario.plan else None
        match = match_scenario(facts, scenario, predicted_s)
        if not match.agrees:  # the first finding; neither links nor kernels are compared with this device's
            scenario, analysis = None, _analyse("DIR", args.folder, args, None)
            if analysis.report.diagnosis is not None:
                diagnosis = with_match(analysis.report.diagnosis, match, facts.step_time_s)
                update = {"diagnosis": diagnosis}
                analysis = replace(analysis, report=analysis.report.model_copy(update=update))
    check = check_prediction(analysis.profile.ranks, scenario) if scenario else None
    if args.html:
        from service.render.pages import render_page

        _write(args.html, "--html", render_page(analysis, change, check))
    if args.calibration_out and check:
        text = json.dumps(check.calibration.model_dump(), indent=2) + "\n"
        _write(args.calibration_out, "--calibration-out", text)
    elif args.calibration_out and match:
        rule = f"is not of the traced job: {match.contradictions[0].message}"
        raise InputError("--scenario", args.scenario, rule)
    if args.json:
        output = analysis.report.model_dump()
        if match:
            output["match"] = match.model_dump()
        if check:
            output["comparison"] = {"far_apart": check.comparison.far_apart, **check.comparison.model_dump()}
        if other and change:
            side = "before" if args.against else "after"
            output |= {side: other.report.model_dump(), "change": change.model_dump()}
        write_json(output)
        return
    from rich.console import Console

    from service.cli.diagnose_tables import print_change, print_prediction, print_report

    console = Console()
    print_report(console, analysis.report, check.comparison.far_apart if check else None)
    if check is not None:
        print_prediction(console, check.comparison)
    if change is not None:
        print_change(console, change)


def _compared(
    analysis: TraceAnalysis, args: Namespace, scenario: Scenario | None
) -> tuple[TraceAnalysis | None, TraceChange | None]:
    """The other folder, if one is named, and what changed from the earlier to the later one."""
    if args.against and args.compare:
        raise InputError("--against", args.against, "leave it or --compare out")
    if not (args.against or args.compare):
        return None, None
    option = "--against" if args.against else "--compare"
    other = _analyse(option, args.against or args.compare, args, scenario)
    sides = (other, analysis) if args.against else (analysis, other)
    return other, compare(*(side.profile.ranks for side in sides))


def _analyse(argument: str, folder: str, args: Namespace, scenario: Scenario | None) -> TraceAnalysis:
    patterns = with_user_kernels(load_patterns(), args.communication_pattern)
    device = device_of(scenario.cluster) if scenario else None
    if args.device:
        with naming_arguments(args):
            device = get_device(args.device)
    with naming_arguments(args, {"folder": argument}), _progress_bar(folder) as progress:
        analysis = analyse_folder(Path(folder), patterns, device, progress, args.workers, limits=None)
    if not analysis.profile.ranks:
        first = analysis.profile.unreadable[0]
        raise InputError(argument, folder, f"has no readable trace ({first.file}: {first.reason})")
    return analysis


@contextmanager
def _progress_bar(folder: str) -> Iterator[FileProgress | None]:
    """On standard error, and only if it is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"reading {escape(folder)}", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _write(path: str, option: str, text: str) -> None:
    write_file(path, text, option)
    write_note(f"wrote {path}")
