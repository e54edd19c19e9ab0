"""Started by torchrun: trains many plans one after the other in one process group, each into a folder of its
own.

    torchrun --nproc-per-node 2 run_reference_plans.py CASES.json DIR

CASES.json maps a name to `{"scenario": ..., "seed": ...}`. One start serves all plans of a world size,
because starting costs more than training a tiny model.
"""

import json
import sys
from pathlib import Path

import torch
from torch import distributed as dist

from testbed.plan import checked_plan
from testbed.record import RunSettings
from testbed.run import train
from tools.scenario import parse_scenario


def main() -> None:
    cases, out = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name, case in cases.items():
        scenario = parse_scenario(case["scenario"])
        settings = RunSettings(out / name, steps=2, warmup=1, seed=case["seed"], optimizer="sgd")
        train(scenario, checked_plan(scenario), settings, torch.device("cpu"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
