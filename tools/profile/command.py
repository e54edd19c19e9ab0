"""A launch command with the capture put in front of its script.

`torchrun --nproc-per-node 2 train.py --lr 1` becomes
`torchrun --nproc-per-node 2 -m tools.profile.run_script --out DIR train.py --lr 1`. Understood are torchrun,
`python -m torch.distributed.run` and a plain `python train.py`, each with a script or with `-m MODULE`.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from tools.errors import InputError
from tools.profile.capture import CaptureSchedule

_RUNNER = "tools.profile.run_script"
_SCRIPT_SUFFIX = ".py"
_LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
"""Modules that start the program, and are not it."""


def insert_capture(
    command: Sequence[str], folder: Path, schedule: CaptureSchedule, *, keep_traces: bool = True
) -> list[str]:
    """The command to run instead; raises InputError when it has no Python program."""
    position = _find_program(command)
    settings = ["--out", str(folder), "--wait", str(schedule.wait), "--warmup", str(schedule.warmup)]
    settings += ["--active", str(schedule.active), *([] if keep_traces else ["--summaries-only"])]
    program = list(command[position:])
    if program[0] == "-m":
        program[0] = "--module"
    return [*command[:position], "-m", _RUNNER, *settings, *program]


def _find_program(command: Sequence[str]) -> int:
    """The first Python file, or `-m` of a module, behind the launcher and its options."""
    if not command:
        raise InputError("COMMAND", "nothing", "must be a torchrun or python command, after --")
    for position, (word, following) in enumerate(pairwise([*command[1:], ""]), start=1):
        if word == "-m" and following and following not in _LAUNCHERS:
            return position
        if word.endswith(_SCRIPT_SUFFIX) and not word.startswith("-"):
            return position
    wanted = f"must name a script (*{_SCRIPT_SUFFIX}) or a module (-m) to run"
    raise InputError("COMMAND", " ".join(command), wanted)
