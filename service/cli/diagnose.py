"""`asap diagnose`: a folder of profiler traces in, where the time goes and why out.

Parses the command line and chooses the output; the analysis is `tools.trace`, the drawing
`diagnose_table.py` (terminal) and `diagnose_page.py` (HTML).
"""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from service.cli.io import write_json_line
from tools.errors import InputError
from tools.hardware import Device, get_device
from tools.trace.folder import Progress
from tools.trace.patterns import CommunicationPatterns, load_patterns, with_user_kernels
from tools.trace.report import TraceReport, analyse_folder

HELP = """\
Find where the time of profiled training steps goes, and why.

DIR is a folder of PyTorch profiler traces, one a rank (*.json, *.json.gz). Exports of Nsight Systems
(*.sqlite), JAX profiles (*.xplane.pb) and rank summaries of 'asap profile' are read too. A file that cannot
be read is listed with the reason; the others are analysed.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """The folder and the outputs."""
    parser.add_argument("folder", metavar="DIR", help="a folder of traces, or one trace file")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--html", metavar="FILE", help="also write a report that opens in any browser")
    parser.add_argument("--compare", metavar="DIR2", help="the folder of traces after a change")
    parser.add_argument("--device", metavar="NAME", help="catalogue name, when the traces do not tell")
    parser.add_argument(
        "--communication-pattern",
        metavar="REGEX",
        action="append",
        default=[],
        help="count kernels whose name matches as communication; may be repeated",
    )
    parser.add_argument("--workers", type=_count, metavar="N", help="processes to read with")


def run(args: Namespace) -> int:
    """Analyse, print, and write the page; a folder without a readable trace is the user's error."""
    patterns = with_user_kernels(load_patterns(), args.communication_pattern)
    device = _find_device(args.device)
    report = _analyse(args.folder, patterns, device, args.workers)
    after = _analyse(args.compare, patterns, device, args.workers) if args.compare else None
    if args.html:
        _write_page(args.html, report, after)
    _print(report, after, as_json=args.json)
    return 0


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def _find_device(name: str | None) -> Device | None:
    try:
        return get_device(name) if name else None
    except InputError as error:
        raise InputError("--device", error.given, error.allowed) from None


def _analyse(
    folder: str, patterns: CommunicationPatterns, device: Device | None, workers: int | None
) -> TraceReport:
    with _progress_bar(folder) as progress:
        report = analyse_folder(Path(folder), patterns, device, progress, workers)
    if not report.profile.ranks:
        file, reason = report.profile.unreadable[0]
        raise InputError("DIR", folder, f"has no readable trace ({file}: {reason})")
    return report


@contextmanager
def _progress_bar(folder: str) -> Iterator[Progress | None]:
    """On standard error, and only where somebody sees it."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"reading {folder}", total=None)

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield show


def _print(report: TraceReport, after: TraceReport | None, *, as_json: bool) -> None:
    from tools.trace.compare import compare

    comparison = compare(report.profile.ranks, after.profile.ranks) if after else None
    if as_json:
        more = {"after": after.data, "comparison": comparison} if after else {}
        write_json_line({**report.data, **more})
        return
    from rich.console import Console

    from service.cli.diagnose_table import print_comparison, print_report

    console = Console()
    print_report(console, report.data)
    if comparison is not None:
        print_comparison(console, comparison)


def _write_page(path: str, report: TraceReport, after: TraceReport | None) -> None:
    from service.cli.diagnose_page import render_page

    try:
        Path(path).write_text(render_page(report, after), encoding="utf-8")
    except OSError as error:
        raise InputError("--html", path, f"cannot be written: {error.strerror or error}") from None
    sys.stderr.write(f"asap: wrote {path}\n")
