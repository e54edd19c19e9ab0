"""A training program that takes a moment: its step time is a rule of the plan, so that runs can be compared.

    python quick_trainer.py SCENARIO OUT STEPS SECONDS

Each start leaves a line in OUT/starts.txt: a job that was launched twice has two.
"""

import json
import os
import sys
import time
from pathlib import Path

scenario, out, steps, seconds = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
with (out / "starts.txt").open("a") as file:
    file.write(f"{os.getpid()}\n")
described = json.loads(Path(scenario).read_text())
plan = described["plan"]
time.sleep(seconds)
base_s = 0.4 / plan["micro_batch_size"] + 0.1 * plan["zero_stage"] + 0.05 * plan["tp"] + 0.02 * plan["pp"]
result = {
    "step_times_s": [base_s * (1 + 0.001 * (step % 3)) for step in range(steps)],
    "losses": [5.0 - 0.1 * step for step in range(steps)],
    "fingerprint": {"model": described["model"], "precision": described["training"]["precision"]},
    "peak_memory_bytes": [2**20],
    "nodes": ["here"],
}
(out / "result.json").write_text(json.dumps(result))
