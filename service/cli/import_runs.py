"""`asap import-runs`: step times from logs of runs that were made anyway, as rows for `asap calibrate`."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from service.cli.io import read_bytes, read_scenario, write_json
from tools.errors import InputError
from tools.model.logs import read_log

HELP = """\
Read the step time, and the peak memory if it is printed, from logs of a run: one row per log for 'asap
calibrate' or POST /v1/measurements, on standard output.

LOG is what Megatron-LM, Megatron-Bridge, nanotron, MaxText, NeMo, torchtitan, DeepSpeed, Automodel, Lightning
or Hugging Face's Trainer printed (progress bars too), an export of Weights & Biases or MLflow (CSV, JSON
lines, a metric's file) or a TensorBoard event file or CSV. --scenario is the job that ran, with its plan. The
first fifth of the steps is left out, and the median of the rest is taken.

Examples:
  asap import-runs train.log --scenario job.json >> runs.jsonl
  asap calibrate runs.jsonl --out cluster.json"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("logs", metavar="LOG", nargs="+", help="log files or CSV exports of this job")
    parser.add_argument("--json", action="store_true", help="one JSON object per line, as without it")
    parser.add_argument("--scenario", metavar="FILE", required=True, help="the job that ran, with its plan")


def run(args: Namespace) -> None:
    scenario = read_scenario(args.scenario, "--scenario")
    for log in args.logs:
        try:
            found = read_log(read_bytes(log, argument="LOG"), scenario, Path(log).stem)
        except InputError as error:
            raise error.at(f"LOG {log}") from None
        write_json(found.to_data())
