"""Many scenarios one after the other in one torchrun: starting four processes takes longer than most runs.

    torchrun ... -m benchmarks.testbed.many FOLDER --out FOLDER --steps N --warmup N

Runs every FOLDER/NAME/scenario.json that has no result.json beside it, in the order of the names, the same
program as `testbed.trainer`. Stops between two when `FOLDER/seconds` have passed.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import distributed as dist

from testbed.plan import checked_plan
from testbed.record import RESULT, RunSettings
from testbed.run import choose_device, join, train
from tools.scenario import parse_scenario

SECONDS = "seconds"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="torchrun ... -m benchmarks.testbed.many")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path)
    for name, usual in (("steps", 4), ("warmup", 1), ("profile-steps", 0), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    args = parser.parse_args(argv)
    deadline_s = time.monotonic() + float((args.folder / SECONDS).read_text())
    files = sorted(args.folder.glob("*/scenario.json"))
    waiting = [file for file in files if not (file.parent / RESULT).exists()]
    joined = False
    for file in waiting:
        scenario = parse_scenario(json.loads(file.read_text()))
        device = choose_device(scenario)
        if not joined:
            join(scenario, device)
            joined = True
        if not _time_left(deadline_s):
            break
        settings = RunSettings(file.parent, args.steps, args.warmup, args.profile_steps, args.seed)
        train(scenario, checked_plan(scenario), settings, device)
    if joined:
        dist.destroy_process_group()
    return 0


def _time_left(deadline_s: float) -> bool:
    """The first rank's clock decides for all."""
    left = torch.tensor([deadline_s - time.monotonic()])
    dist.broadcast(left, 0)
    return bool(left > 0)


if __name__ == "__main__":
    sys.exit(main())
