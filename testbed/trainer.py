"""The reference trainer's command line: one scenario file, one run.

torchrun --nproc-per-node 4 -m testbed.trainer scenario.json --steps 10 --warmup 2 --out DIR

Exit status: 0 done, 2 invalid input, 1 any other failure.
"""

import json
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from testbed.plan import checked_plan
from testbed.record import OPTIMIZERS, RunSettings, write_failure
from tools.errors import InputError
from tools.scenario import parse_scenario

FAILED, WRONG_INPUT = 1, 2


def main(words: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(words)
    out = Path(args.out)
    try:
        settings = RunSettings(out, args.steps, args.warmup, args.profile_steps, args.seed, args.optimizer)
        scenario = parse_scenario(_read(Path(args.scenario)))
        plan = checked_plan(scenario)
        from testbed.run import run

        run(scenario, plan, settings)
    except InputError as error:
        write_failure(out, error, None)
        sys.stderr.write(f"trainer: error: {error}\n")
        return WRONG_INPUT
    except Exception as error:
        write_failure(out, error, None)
        raise
    return 0


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="torchrun ... -m testbed.trainer",
        description="Train a scenario's model under its plan and time it.",
    )
    parser.add_argument("scenario", metavar="FILE", help="a scenario with a plan, as JSON")
    parser.add_argument("--out", required=True, metavar="DIR", help="where result.json and progress.jsonl go")
    parser.add_argument("--steps", type=int, default=RunSettings.steps, help="measured steps")
    parser.add_argument("--warmup", type=int, default=RunSettings.warmup, help="steps before them")
    parser.add_argument("--profile-steps", type=int, default=0, help="profiled steps after them")
    parser.add_argument("--seed", type=int, default=0, help="of weights and data")
    parser.add_argument("--optimizer", default="adamw", help=f"one of {', '.join(OPTIMIZERS)}")
    return parser


def _read(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError("FILE", str(path), f"must be a readable JSON file: {error}") from None


if __name__ == "__main__":
    sys.exit(main())
