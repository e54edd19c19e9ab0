"""`asap calibrate`: the cost model of one cluster, from a handful of its own runs."""

import json
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from service.cli.io import connect, make_table, read_object, read_records, safe_text, write_json_line
from tools.calibrate.runs import MAX_RUNS, OWN_SOURCES, Run, parse_file, parse_run, to_file
from tools.calibrate.update import Calibrated, calibrate
from tools.cost.calibration import FORMAT as CONSTANTS_FORMAT
from tools.cost.calibration import Calibration, parse_cluster_calibration
from tools.errors import InputError

HELP = """\
Learn from a cluster's own runs: a Bayesian update of the cost model's constants.

RUNS has one JSON object per line, a run of any plan or model on the cluster:
  {"scenario": {...}, "measured": {"step_time_s": 9.7, "peak_memory_gib": 61.2}}
  {"scenario": {...}, "crashed": true}
One run shifts what all runs share, more runs the terms that they tell apart, and intervals become narrower.
Implausible runs (another device, another unit, far from all others) are named and left out. The error
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
    parser.add_argument("--server", metavar="URL", help="address of the server (ASAP_SERVER)")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")


def read_calibration(source: str | None) -> Calibration | None:
    return read_calibration_and_runs(source)[0]


def read_calibration_and_runs(source: str | None) -> tuple[Calibration | None, tuple[Run, ...]]:
    """With the runs that it was learned from: trials of a session join them."""
    if source is None:
        return None, ()
    data = read_object(source, argument="--calibration")
    if data.get("format") == CONSTANTS_FORMAT:
        return parse_cluster_calibration(data, "--calibration").apply(), ()
    name, runs = parse_file(data, "--calibration")
    learned = calibrate(runs, name=name, own=all(run.source in OWN_SOURCES for run in runs))
    without = {run.number for run in learned.left_out}
    return learned.calibration, tuple(run for i, run in enumerate(runs) if i not in without)


def run(args: Namespace) -> int:
    if args.undo:
        with connect(args.server) as client:
            _print_cluster(client.undo_runs(args.undo), args.json)
        return 0
    if not args.file:
        raise InputError("RUNS", None, "give a file of runs, or --undo NAME")
    runs = read_runs(args.file)
    if args.report:
        with connect(args.server) as client:
            answer = client.report_runs({"runs": [run.to_data() for run in runs]})
        for cluster in answer["items"]:
            _print_cluster(cluster, args.json)
        return 0
    if not args.out:
        raise InputError("--out", None, "give a file for the calibration, or --report for the server")
    name = _cluster_name(runs)
    learned = calibrate(runs, name=name)
    if not learned.runs:
        raise InputError("RUNS", f"{len(runs)} runs", f"none is usable; {learned.left_out[0].why}")
    write_calibration(args.out, name, runs)
    if args.json:
        write_json_line(as_data(learned, name))
    else:
        print_calibrated(learned, name)
    return 0


def _print_cluster(cluster: Mapping[str, object], as_json: bool) -> None:
    if as_json:
        write_json_line(cluster)
        return
    says = f"{cluster['name']}: {cluster['says']}, version {cluster['version']}"
    Console(highlight=False).print(safe_text(says))


def read_runs(source: str) -> list[Run]:
    runs = []
    for record in read_records(source, argument="RUNS"):
        if isinstance(record.content, InputError):
            raise record.content
        runs.append(parse_run(record.content, f"line {record.line}: "))
        if len(runs) > MAX_RUNS:
            raise InputError("RUNS", f"more than {MAX_RUNS} runs", "give the newest")
    return runs


def _cluster_name(runs: Sequence[Run]) -> str:
    """What the scenarios call their cluster, if they agree."""
    names = {run.scenario.cluster.name for run in runs}
    if len(names) > 1:
        listed = ", ".join(sorted(repr(name) for name in names))
        raise InputError("scenario.cluster.name", listed, "a calibration is of one cluster")
    return names.pop() or ""


def write_calibration(path: str, name: str, runs: Sequence[Run]) -> None:
    try:
        Path(path).write_text(json.dumps(to_file(name, runs)) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError("--out", path, f"{error.strerror}; give a file that can be written") from None


def as_data(learned: Calibrated, name: str) -> dict[str, object]:
    cluster = learned.calibration.cluster
    return {
        "cluster": name,
        "runs": learned.runs,
        "says": learned.says,
        "error_before": learned.error_before,
        "error_after": learned.error_after,
        "common_factor": 1.0 + learned.offset,
        "memory_factor": cluster.memory_factor if cluster else 1.0,
        "constants": [asdict(constant) for constant in learned.constants],
        "checked": [asdict(run) for run in learned.checked],
        "left_out": [asdict(run) for run in learned.left_out],
    }


def print_calibrated(learned: Calibrated, name: str) -> None:
    console = Console(highlight=False)
    console.print(f"[bold]{name or 'this cluster'}[/]: {learned.says}")
    if len(learned.checked) > 1:
        console.print(
            f"mean error {learned.error_before:.1%} before, {learned.error_after:.1%} after, each run as the "
            "others predict it\n"
        )
    table = make_table("run", ">measured", ">before", ">after", wraps=("run",))
    for run in learned.checked:
        table.add_row(
            safe_text(run.id),
            f"{run.measured_s:.3g} s",
            f"{run.before_s / run.measured_s - 1:+.1%}",
            f"{run.after_s / run.measured_s - 1:+.1%}",
        )
    if learned.checked:
        console.print(table)
    if learned.constants:
        table = make_table("constant", ">usual", ">here", "meaning", wraps=("meaning",))
        for constant in learned.constants:
            table.add_row(
                constant.name, f"{constant.before:.3g}", f"{constant.after:.3g}", safe_text(constant.meaning)
            )
        console.print(table)
    cluster = learned.calibration.cluster
    if cluster and abs(cluster.memory_factor - 1) >= 0.005:
        console.print(f"peaks are {cluster.memory_factor:.2f} times those predicted")
    for reason, count in Counter(run.why for run in learned.left_out).items():
        names = ", ".join(run.id for run in learned.left_out if run.why == reason)
        console.print(safe_text(f"left out {count}: {names}: {reason}"))
