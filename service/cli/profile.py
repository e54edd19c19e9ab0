"""`asap profile -- COMMAND`: runs a training command with the capture in it and reports its overhead."""

import subprocess
import sys
from argparse import REMAINDER, ArgumentParser, Namespace
from pathlib import Path

from asap_client.capture import SUMMARY_FOLDER, CaptureSchedule, read_overhead
from asap_client.operations import OVERHEAD_SUFFIX
from asap_client.run_script import insert_capture
from service.cli.io import write_json
from tools.errors import AsapError, InputError

HELP = """\
Run a training command under the profiler, without changing its script.

Every optimizer step ends a step. Each rank writes DIR/rank<N>.json.gz, and a summary of a few kilobytes
under DIR/summaries if ASAP is installed in the training environment. 'asap diagnose DIR' reads both. The
training environment needs torch and asap-client.

Examples:
  asap profile --out traces -- torchrun --nproc-per-node 8 train.py --lr 1e-4
  asap profile --summaries-only -- python -m my_package.train"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--out", metavar="DIR", default="traces", help="folder for the traces (traces)")
    default = CaptureSchedule()
    for name, steps, about in (
        ("--wait", default.wait, "unprofiled steps first"),
        ("--warmup", default.warmup, "warm-up steps"),
        ("--active", default.active, "steps to profile"),
    ):
        parser.add_argument(name, type=int, default=steps, metavar="N", help=f"{about} ({steps})")
    parser.add_argument("--summaries-only", action="store_true", help="do not keep the raw traces")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("command", nargs=REMAINDER, metavar="-- COMMAND", help="torchrun or python command")
    parser.usage = "asap profile [options] -- COMMAND ..."


def run(args: Namespace) -> None:
    """Runs the command; raises AsapError with its exit status if it fails."""
    schedule = CaptureSchedule(args.wait, args.warmup, args.active)
    words = args.command[1:] if args.command[:1] == ["--"] else args.command
    folder = Path(args.out)
    command = insert_capture(words, folder, schedule, keep_traces=not args.summaries_only)
    try:
        # What the training prints goes to standard error: standard output is for the report.
        finished = subprocess.run(command, stdout=sys.stderr.fileno(), check=False)
    except OSError as error:
        raise InputError("COMMAND", command[0], f"cannot be run: {error.strerror or error}") from None
    if finished.returncode:
        raise AsapError(f"the command ended with status {finished.returncode}: {' '.join(command)}")
    paths = sorted((folder / SUMMARY_FOLDER).glob(f"rank*{OVERHEAD_SUFFIX}"))
    overheads = {path.name.removesuffix(OVERHEAD_SUFFIX): read_overhead(path) for path in paths}
    if not overheads:
        raise AsapError(
            f"no trace was written to {folder}: did the script step its optimizer {schedule.total} times?"
        )
    if args.json:
        names = ("plain_step_s", "profiled_step_s", "overhead_ratio")
        ranks = [
            {"rank": int(name.removeprefix("rank")), **{key: getattr(overhead, key) for key in names}}
            for name, overhead in overheads.items()
        ]
        write_json({"folder": str(folder), "ranks": ranks})
        return
    for name, overhead in overheads.items():
        line = (
            f"{(overhead.profiled_step_s or 0) * 1000:.1f} ms per profiled step ({overhead.profiled_steps})"
        )
        if overhead.overhead_ratio is None or overhead.plain_step_s is None:
            line += "; no plain step to compare with"
        else:
            line += f", {overhead.plain_step_s * 1000:.1f} ms per plain step ({overhead.plain_steps}): "
            line += f"overhead {overhead.overhead_ratio:+.1%}"
        sys.stdout.write(f"{name}: {line}\n")
    sys.stdout.write(f"next: asap diagnose {folder}\n")
