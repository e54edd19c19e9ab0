"""A launch command with the capture put in front of its script.

`torchrun --nproc-per-node 2 train.py --lr 1` becomes
`torchrun --nproc-per-node 2 -m tools.profile.run_script --out DIR train.py --lr 1`. Understood are torchrun,
`python -m torch.distributed.run` and a plain `python train.py`.
"""

from collections.abc import Sequence
from pathlib import Path

from tools.errors import InputError
from tools.profile.capture import CaptureSchedule

_RUNNER = "tools.profile.run_script"
_SCRIPT_SUFFIX = ".py"


def insert_capture(
    command: Sequence[str], folder: Path, schedule: CaptureSchedule, *, keep_traces: bool = True
) -> list[str]:
    """The command to run instead; raises InputError when it has no Python script."""
    position = _find_script(command)
    settings = ["--out", str(folder), "--wait", str(schedule.wait), "--warmup", str(schedule.warmup)]
    settings += ["--active", str(schedule.active), *([] if keep_traces else ["--summaries-only"])]
    return [*command[:position], "-m", _RUNNER, *settings, *command[position:]]


def _find_script(command: Sequence[str]) -> int:
    """The first word that is a Python file; options before it belong to the launcher."""
    if not command:
        raise InputError("COMMAND", "nothing", "must be a torchrun or python command, after --")
    for position, word in enumerate(command[1:], 1):
        if word.endswith(_SCRIPT_SUFFIX) and not word.startswith("-"):
            return position
    raise InputError("COMMAND", " ".join(command), f"must name a script (*{_SCRIPT_SUFFIX}) to run")
