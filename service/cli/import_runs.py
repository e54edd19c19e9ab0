"""`asap import-runs`: step times from logs of runs that were made anyway, as rows for `asap calibrate`."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from service.cli.io import MAX_SCENARIO_BYTES, read_bytes, read_object, write_json_line
from tools.calibrate.runs import read_log
from tools.errors import InputError
from tools.scenario import parse_scenario

HELP = """\
Read the step time, and the peak memory if it is printed, from logs of a run: one row per log for 'asap
calibrate' or POST /v1/measurements, on standard output.

LOG is what Megatron-LM, torchtitan or nanotron printed, or a CSV export of Weights & Biases (a column of step
times) or TensorBoard (any scalar). --scenario is the job that ran, with its plan. The first fifth of the
steps is left out, and the median of the rest is taken.

Examples:
  asap import-runs train.log --scenario job.json >> runs.jsonl
  asap calibrate runs.jsonl --out cluster.json"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("logs", metavar="LOG", nargs="+", help="log files or CSV exports of this job")
    parser.add_argument("--json", action="store_true", help="one JSON object per line, as without it")
    parser.add_argument("--scenario", metavar="FILE", required=True, help="the job that ran, with its plan")


def run(args: Namespace) -> int:
    scenario = parse_scenario(read_object(args.scenario, MAX_SCENARIO_BYTES, "--scenario"))
    for log in args.logs:
        text = read_bytes(log, argument="LOG").decode("utf-8", "replace")
        try:
            found = read_log(text, scenario, Path(log).stem)
        except InputError as error:
            raise InputError(f"LOG {log}", error.given, error.allowed) from None
        write_json_line(found.to_data())
    return 0
