"""Runs a training script under `capture`, unchanged; `insert_capture` puts this into a command."""

import argparse
import runpy
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from asap_client.capture import CaptureSchedule, capture
from asap_client.errors import CaptureError, InputError

_RUNNER = "asap_client.run_script"
_SCRIPT_SUFFIX = ".py"
_LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
"""Modules that launch the program rather than being it."""


def insert_capture(
    command: Sequence[str], folder: Path, schedule: CaptureSchedule, *, keep_traces: bool = True
) -> list[str]:
    """The command to run instead; raises InputError if it has no Python program."""
    if not command:
        raise InputError("COMMAND", "nothing", "must be a torchrun or python command, after --")
    programs = (
        position
        for position, (word, following) in enumerate(pairwise([*command[1:], ""]), start=1)
        if (word == "-m" and following and following not in _LAUNCHERS)
        or (word.endswith(_SCRIPT_SUFFIX) and not word.startswith("-"))
    )
    position = next(programs, None)
    if position is None:
        allowed = f"must name a script (*{_SCRIPT_SUFFIX}) or a module (-m) to run"
        raise InputError("COMMAND", " ".join(command), allowed)
    settings = ["--out", str(folder), "--wait", str(schedule.wait), "--warmup", str(schedule.warmup)]
    settings += ["--active", str(schedule.active), *([] if keep_traces else ["--summaries-only"])]
    program = list(command[position:])
    if program[0] == "-m":
        program[0] = "--module"
    return [*command[:position], "-m", _RUNNER, *settings, *program]


def main(words: Sequence[str] | None = None) -> None:
    """Parses the options before the script and passes the rest on to it."""
    parser = argparse.ArgumentParser(prog="asap_client.run_script")
    parser.add_argument("--out", required=True)
    for name in ("wait", "warmup", "active"):
        parser.add_argument(f"--{name}", type=int, default=getattr(CaptureSchedule, name))
    parser.add_argument("--summaries-only", action="store_true")
    parser.add_argument("--module", action="store_true", help="the script is named as for python -m")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    args = parser.parse_args(words)
    schedule = CaptureSchedule(args.wait, args.warmup, args.active)
    sys.argv = [args.script, *args.arguments]
    optimizers: list[object] = []
    try:
        with capture(Path(args.out), schedule, keep_traces=not args.summaries_only) as session:
            from torch.optim.optimizer import register_optimizer_step_post_hook

            def after_step(optimizer: object, arguments: object, keywords: object) -> None:
                """A step of the training: if there are several optimizers, one of the first one seen."""
                if not optimizers:
                    optimizers.append(optimizer)
                if optimizer is optimizers[0]:
                    session.step()

            register_optimizer_step_post_hook(after_step)
            if args.module:  # as `python -m` would
                sys.path.insert(0, str(Path.cwd()))
                runpy.run_module(args.script, run_name="__main__", alter_sys=True)
            else:  # as `python` would
                sys.path.insert(0, str(Path(args.script).resolve().parent))
                runpy.run_path(args.script, run_name="__main__")
    except CaptureError as error:
        sys.exit(f"asap_client: {error}")


if __name__ == "__main__":
    main()
