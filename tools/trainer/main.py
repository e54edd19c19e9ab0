"""The trainer's command line: one scenario file, one run.

Exit status as everywhere in ASAP: 0 done, 2 the input is wrong, 1 any other failure; torchrun reports every
failure as 1, so the reason stands in `DIR/failures` too.
"""

import json
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from tools.errors import InputError
from tools.scenario import parse_scenario
from tools.trainer.record import write_failure
from tools.trainer.refusals import checked_plan
from tools.trainer.settings import OPTIMIZERS, RunSettings

FAILED, WRONG_INPUT = 1, 2


def main(words: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(words)
    out = Path(args.out)
    try:
        settings = RunSettings(out, args.steps, args.warmup, args.profile_steps, args.seed, args.optimizer)
        scenario = parse_scenario(_read(Path(args.scenario)))
        plan = checked_plan(scenario)
        from tools.trainer.run import run

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
        prog="torchrun ... -m tools.trainer",
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
