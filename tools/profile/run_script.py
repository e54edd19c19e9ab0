"""Runs a training script under `capture` without a change to it: a step ends when its optimizer has stepped.

    python -m tools.profile.run_script --out traces train.py --lr 0.1

`asap profile` puts this between torchrun and the script. Scripts without a torch optimizer have no steps that
could be seen here: they use `capture` themselves.
"""

import argparse
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tools.profile.capture import CaptureSchedule, capture


def main(words: Sequence[str] | None = None) -> None:
    """Parses what stands before the script and hands the rest on to it."""
    parser = argparse.ArgumentParser(prog="tools.profile.run_script")
    parser.add_argument("--out", required=True)
    parser.add_argument("--wait", type=int, default=CaptureSchedule.wait)
    parser.add_argument("--warmup", type=int, default=CaptureSchedule.warmup)
    parser.add_argument("--active", type=int, default=CaptureSchedule.active)
    parser.add_argument("--summaries-only", action="store_true")
    parser.add_argument("--module", action="store_true", help="the script is named as for python -m")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    args = parser.parse_args(words)
    schedule = CaptureSchedule(args.wait, args.warmup, args.active)
    sys.argv = [args.script, *args.arguments]
    run = _run_module if args.module else _run_file
    with capture(Path(args.out), schedule, keep_traces=not args.summaries_only) as session:
        _call_after_optimizer_steps(session.step)
        run(args.script)


def _run_file(script: str) -> None:
    """As `python script` would."""
    sys.path.insert(0, str(Path(script).resolve().parent))
    runpy.run_path(script, run_name="__main__")


def _run_module(name: str) -> None:
    """As `python -m name` would."""
    sys.path.insert(0, str(Path.cwd()))
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _call_after_optimizer_steps(step: Callable[[], None]) -> None:
    """Once a step: of several optimizers only the first one seen counts."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    first: list[int] = []

    def after(optimizer: Any, arguments: object, keywords: object) -> None:  # noqa: ANN401
        if not first:
            first.append(id(optimizer))
        if first[0] == id(optimizer):
            step()

    register_optimizer_step_post_hook(after)


if __name__ == "__main__":
    main()
