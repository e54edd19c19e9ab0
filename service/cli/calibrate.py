"""`asap calibrate`: the cost model of one cluster, from a handful of its own runs."""

from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console

from service.cli.io import (
    MAX_INPUT_BYTES,
    make_table,
    read_object,
    read_records,
    safe_text,
    write_file,
    write_json,
)
from service.cli.parser import add_server
from service.cli.server import connect
from tools.errors import InputError
from tools.model.calibration import FORMAT as CONSTANTS_FORMAT
from tools.model.calibration import Calibration, parse_cluster_calibration
from tools.model.runs import MAX_RUNS, OWN_SOURCES, Run, parse_file, parse_run, to_file
from tools.model.update import Calibrated, calibrate

if TYPE_CHECKING:
    from asap_client.generated.models import ClusterPublic

HELP = """\
Learn from a cluster's own runs: a Bayesian update of the cost model.

RUNS has one JSON object per line, a run of any plan or model on the cluster:
  {"scenario": {...}, "measured": {"step_time_s": 9.7, "peak_memory_gib": 61.2}}
  {"scenario": {...}, "crashed": true}
One run shifts what all runs share, more runs what alike plans share; constants move only if runs show their
terms. What is odd comes first, with what to measure: a cluster far from all others, runs that contradict each
other. Implausible runs (another device, another unit, far from the others) are named and left out. The error
after is that of each run as the others predict it.

With --report the runs go to a server instead, which keeps them per cluster.name; --undo takes the newest of
them back.

Examples:
  asap calibrate runs.jsonl --out cluster.json
  asap calibrate runs.jsonl --report
  asap calibrate --undo prod
  asap predict --calibration cluster.json plans.jsonl
  asap optimize --calibration cluster.json job.json"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", metavar="RUNS", nargs="?", help="runs as JSONL; - for standard input")
    parser.add_argument("--out", metavar="FILE", help="where to write the calibration")
    parser.add_argument("--report", action="store_true", help="report the runs to the server (ASAP_SERVER)")
    parser.add_argument("--undo", metavar="NAME", help="take back the newest runs of a cluster at the server")
    add_server(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")


def read_calibration(source: str | None) -> tuple[Calibration | None, tuple[Run, ...]]:
    """With the runs that it was learned from: trials of a session join them."""
    if source is None:
        return None, ()
    data = read_object(source, MAX_INPUT_BYTES, "--calibration")
    if data.get("format") == CONSTANTS_FORMAT:
        return parse_cluster_calibration(data, "--calibration").apply(), ()
    name, runs = parse_file(data, "--calibration")
    is_own = all(run.source in OWN_SOURCES for run in runs)  # one session of trials, or one probe
    learned = calibrate((), name=name, own=runs) if is_own else calibrate(runs, name=name)
    return learned.calibration, tuple(runs)


def run(args: Namespace) -> None:
    if args.undo:
        with connect(args.server) as client:
            print_clusters([client.undo_runs(args.undo)], args)
        return
    if not args.file:
        raise InputError("RUNS", None, "give a file of runs, or --undo NAME")
    runs = read_runs(args.file)
    if args.report:
        with connect(args.server) as client:
            print_clusters(client.report_runs({"runs": [run.to_data() for run in runs]})["items"], args)
        return
    if not args.out:
        raise InputError("--out", None, "give a file for the calibration, or --report for the server")
    names = {run.scenario.cluster.name or "" for run in runs}
    if len(names) > 1:
        listed = ", ".join(sorted(repr(name) for name in names))
        raise InputError("scenario.cluster.name", listed, "a calibration is of one cluster")
    (name,) = names
    learned = calibrate(runs, name=name)
    if not learned.runs:
        raise InputError("RUNS", f"{len(runs)} runs", f"none is usable; {learned.left_out[0].why}")
    write_file(args.out, to_file(name, runs), "--out")
    if not args.json:
        print_calibrated(learned, name)
        return
    cluster = learned.calibration.cluster
    write_json(
        {
            "cluster": name,
            "runs": learned.runs,
            "says": learned.label,
            "findings": [asdict(finding) for finding in learned.findings],
            "error_before": learned.error_before,
            "error_after": learned.error_after,
            "common_factor": 1.0 + learned.offset,
            "memory_factor": cluster.memory_factor if cluster else 1.0,
            "constants": [asdict(constant) for constant in learned.constants],
            "checked": [asdict(run) for run in learned.checked],
            "left_out": [asdict(run) for run in learned.left_out],
        }
    )


def read_runs(source: str, argument: str = "RUNS", most: float = MAX_RUNS) -> list[Run]:
    runs = []
    for record in read_records(source, argument=argument):
        if isinstance(record.content, InputError):
            raise record.content
        runs.append(parse_run(record.content, f"line {record.line}: "))
        if len(runs) > most:
            raise InputError(argument, f"more than {most} runs", "give the newest")
    return runs


def print_clusters(clusters: "Sequence[ClusterPublic]", args: Namespace) -> None:
    for cluster in clusters:
        if args.json:
            write_json(cluster)
        else:
            lines = [f"{finding['message']} {finding['measure']}" for finding in cluster.get("findings", [])]
            lines.append(f"{cluster['name']}: {cluster['says']}, version {cluster['version']}")
            for line in lines:
                Console(highlight=False).print(safe_text(line))


def print_calibrated(learned: Calibrated, name: str) -> None:
    console = Console(highlight=False)
    for finding in learned.findings:
        console.print(safe_text(finding.message, "bold"))
        console.print(safe_text(f"  measure: {finding.measure}"))
    console.print(f"[bold]{name or 'this cluster'}[/]: {learned.label}")
    if len(learned.checked) > 1:
        console.print(
            f"mean error {learned.error_before:.1%} before, {learned.error_after:.1%} after, each run as the "
            "others predict it\n"
        )
    if learned.checked:
        checked = (
            (
                *(run.id, f"{run.measured_s:.3g} s"),
                *(f"{seconds / run.measured_s - 1:+.1%}" for seconds in (run.before_s, run.after_s)),
            )
            for run in learned.checked
        )
        console.print(make_table("run", ">measured", ">before", ">after", rows=checked, wraps=("run",)))
    if learned.constants:
        constants = (
            (constant.name, f"{constant.before:.3g}", f"{constant.after:.3g}", constant.meaning)
            for constant in learned.constants
        )
        columns = ("constant", ">usual", ">here", "meaning")
        console.print(make_table(*columns, rows=constants, wraps=("meaning",)))
    cluster = learned.calibration.cluster
    if cluster and abs(cluster.memory_factor - 1) >= 0.005:
        console.print(f"peaks are {cluster.memory_factor:.2f} times those predicted")
    for reason, count in Counter(run.why for run in learned.left_out).items():
        names = ", ".join(run.id for run in learned.left_out if run.why == reason)
        console.print(safe_text(f"left out {count}: {names}: {reason}"))
