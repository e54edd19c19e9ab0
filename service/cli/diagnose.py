"""`asap diagnose`: where the time of a folder of profiler traces goes, and why."""

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from service.cli.io import MAX_SCENARIO_BYTES, read_object, write_json_line
from service.cli.parser import positive_number
from tools.cost.encode import scenario_device
from tools.cost.predict import predict
from tools.errors import InputError
from tools.hardware import Device, get_device
from tools.scenario import Scenario, parse_scenario
from tools.trace.classify import CommunicationPatterns, load_patterns, with_user_kernels
from tools.trace.compare import PredictionCheck, check_prediction, compare
from tools.trace.folder import Progress
from tools.trace.match import TraceMatch, match_scenario, with_match
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

Examples:
  asap diagnose examples/traces/ddp-gloo-straggler
  asap diagnose traces/ --html report.html
  asap diagnose before/ --compare after/
  asap diagnose traces/ --scenario job.json --calibration-out cluster.json
"""


def add_arguments(parser: ArgumentParser) -> None:
    """The folder and the outputs."""
    parser.add_argument("folder", metavar="DIR", help="a folder of traces, or one trace file")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--html", metavar="FILE", help="also write a report that opens in any browser")
    parser.add_argument("--compare", metavar="DIR2", help="the folder of traces after a change")
    parser.add_argument("--scenario", metavar="FILE", help="the traced job, to compare with its prediction")
    parser.add_argument(
        "--calibration-out", metavar="FILE", help="write what the traces measured of the cluster (--scenario)"
    )
    parser.add_argument("--device", metavar="NAME", help="catalogue name, if the traces do not contain it")
    parser.add_argument(
        "--communication-pattern",
        metavar="REGEX",
        action="append",
        default=[],
        help="count kernels whose name matches as communication; may be repeated",
    )
    parser.add_argument("--workers", type=positive_number, metavar="N", help="processes to read with")


def run(args: Namespace) -> int:
    """Analyse, print, and write the page; a folder without a readable trace is the user's error."""
    patterns = with_user_kernels(load_patterns(), args.communication_pattern)
    scenario = _read_scenario(args)
    device = _find_device(args.device) or (scenario_device(scenario.cluster) if scenario else None)
    before = _analyse("DIR", args.folder, patterns, device, args.workers)
    after = _analyse("--compare", args.compare, patterns, device, args.workers) if args.compare else None
    match = _match(before, scenario)
    if match and not match.agrees:
        before, scenario = _with_mismatch(before, match), None
    check = check_prediction(before.profile.ranks, scenario) if scenario else None
    if args.html:
        _write(args.html, "--html", _render(before, after, check))
    if args.calibration_out and check:
        _write(
            args.calibration_out,
            "--calibration-out",
            json.dumps(check.calibration.to_data(), indent=2) + "\n",
        )
    if args.calibration_out and match and not check:
        raise InputError(
            "--scenario", args.scenario, f"is not of the traced job: {match.contradictions[0].says}"
        )
    _print(before, after, check, match, as_json=args.json)
    return 0


def _match(analysis: TraceAnalysis, scenario: Scenario | None) -> TraceMatch | None:
    """Whether the traces are of the scenario's job."""
    facts = analysis.report.facts
    if scenario is None or facts is None:
        return None
    predicted_s = predict([scenario])[0].step_time_s if scenario.plan else None
    return match_scenario(facts, scenario, predicted_s)


def _with_mismatch(analysis: TraceAnalysis, match: TraceMatch) -> TraceAnalysis:
    report = analysis.report
    if report.diagnosis is None or report.facts is None:
        return analysis
    diagnosis = with_match(report.diagnosis, match, report.facts.step_time_s)
    return replace(analysis, report=report.model_copy(update={"diagnosis": diagnosis}))


def _read_scenario(args: Namespace) -> Scenario | None:
    if args.scenario:
        return parse_scenario(read_object(args.scenario, MAX_SCENARIO_BYTES, "--scenario"))
    if args.calibration_out:
        raise InputError("--calibration-out", args.calibration_out, "needs --scenario, the traced job")
    return None


def _find_device(name: str | None) -> Device | None:
    try:
        return get_device(name) if name else None
    except InputError as error:
        raise InputError("--device", error.given, error.allowed) from None


def _analyse(
    argument: str, folder: str, patterns: CommunicationPatterns, device: Device | None, workers: int | None
) -> TraceAnalysis:
    with _progress_bar(folder) as progress:
        try:
            analysis = analyse_folder(Path(folder), patterns, device, progress, workers, limits=None)
        except InputError as error:
            raise InputError(argument, error.given, error.allowed) from None
    if not analysis.profile.ranks:
        first = analysis.profile.unreadable[0]
        raise InputError(argument, folder, f"has no readable trace ({first.file}: {first.reason})")
    return analysis


@contextmanager
def _progress_bar(folder: str) -> Iterator[Progress | None]:
    """On standard error, and only if it is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"reading {escape(folder)}", total=None)

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield show


def _print(
    before: TraceAnalysis,
    after: TraceAnalysis | None,
    check: PredictionCheck | None,
    match: TraceMatch | None,
    *,
    as_json: bool,
) -> None:
    change = compare(before.profile.ranks, after.profile.ranks) if after else None
    if as_json:
        output = before.report.model_dump()
        if match:
            output["match"] = match.model_dump()
        if check:
            output["comparison"] = check.comparison.model_dump()
        if after and change:
            output |= {"after": after.report.model_dump(), "change": change.model_dump()}
        write_json_line(output)
        return
    from rich.console import Console

    from service.cli.diagnose_tables import print_change, print_prediction, print_report

    console = Console()
    print_report(console, before.report)
    if check is not None:
        print_prediction(console, check.comparison)
    if change is not None:
        print_change(console, change)


def _render(before: TraceAnalysis, after: TraceAnalysis | None, check: PredictionCheck | None) -> str:
    from service.render.pages import render_page

    return render_page(before, after, check)


def _write(path: str, option: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(option, path, f"cannot be written: {error.strerror or error}") from None
    sys.stderr.write(f"asap: wrote {path}\n")
