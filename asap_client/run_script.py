"""Runs a training script under `capture` without changing it; every optimizer step ends a step.
`insert_capture` puts this program into a torchrun or python command.
"""

import argparse
import runpy
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

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
    position = _find_program(command)
    settings = ["--out", str(folder), "--wait", str(schedule.wait), "--warmup", str(schedule.warmup)]
    settings += ["--active", str(schedule.active), *([] if keep_traces else ["--summaries-only"])]
    program = list(command[position:])
    if program[0] == "-m":
        program[0] = "--module"
    return [*command[:position], "-m", _RUNNER, *settings, *program]


def _find_program(command: Sequence[str]) -> int:
    """Position of the first Python file, or `-m` of a module, after the launcher and its options."""
    if not command:
        raise InputError("COMMAND", "nothing", "must be a torchrun or python command, after --")
    for position, (word, following) in enumerate(pairwise([*command[1:], ""]), start=1):
        if word == "-m" and following and following not in _LAUNCHERS:
            return position
        if word.endswith(_SCRIPT_SUFFIX) and not word.startswith("-"):
            return position
    allowed = f"must name a script (*{_SCRIPT_SUFFIX}) or a module (-m) to run"
    raise InputError("COMMAND", " ".join(command), allowed)


def main(words: Sequence[str] | None = None) -> None:
    """Parses the options before the script and passes the rest on to it."""
    parser = argparse.ArgumentParser(prog="asap_client.run_script")
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
    try:
        with capture(Path(args.out), schedule, keep_traces=not args.summaries_only) as session:
            _call_after_optimizer_steps(session.step)
            run(args.script)
    except CaptureError as error:
        sys.exit(f"asap_client: {error}")


def _run_file(script: str) -> None:
    """As `python script` would."""
    sys.path.insert(0, str(Path(script).resolve().parent))
    runpy.run_path(script, run_name="__main__")


def _run_module(name: str) -> None:
    """As `python -m name` would."""
    sys.path.insert(0, str(Path.cwd()))
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _call_after_optimizer_steps(step: Callable[[], None]) -> None:
    """Once per step: if there are several optimizers, only the first one seen counts."""
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
