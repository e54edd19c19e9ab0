"""Writes five weeks of invented nights, so that the nightly report can be tried without a cluster.

    python examples/nightly_history.py FOLDER

FOLDER gets nightly.yaml, the scenario of a 70B model on 64 devices, and a metrics file for each night, as a
training job would log them. Nights scatter by 1%. From the 31st on the step takes 4% longer: that night NCCL
was upgraded, and the exchange of gradients waits longer for its links.
"""

import json
import os
import random
import sys
import time
from pathlib import Path

NIGHTS, STEPS, RANKS, DAY_S = 34, 40, 8, 86_400
SINCE, SLOWER_S = 30, 0.9
TERMS_S = {
    "compute": 14.9,
    "memory_bound_ops": 1.7,
    "tp_comm_exposed": 3.6,
    "dp_comm_exposed": 0.6,
    "pipeline": 1.0,
}
CONFIG = """\
workloads:
  - name: llama-70b
    scenario: llama-70b.json
    metrics: metrics/*.jsonl
    hours_per_day: 22
"""


def lines(night: int, chance: random.Random) -> list[dict[str, object]]:
    """A line for each step; what holds for the whole night stands in the first."""
    tonight = chance.gauss(1.0, 0.01)
    terms_s = {name: value * tonight for name, value in TERMS_S.items()}
    terms_s["dp_comm_exposed"] += SLOWER_S * (night >= SINCE)
    step_s = sum(terms_s.values())
    about = {
        "breakdown_s": terms_s,
        "rank_times_s": [terms_s["compute"] * chance.gauss(1.0, 0.003) for _ in range(RANKS)],
        "peak_memory_bytes": round(31 * 2**30 * chance.gauss(1.0, 0.001)),
        "versions": {"torch": "2.13.0", "nccl": "2.28.9" if night >= SINCE else "2.28.3"},
        "nodes": [f"n{number:02}" for number in range(8)],
        "data": "corpus-2026-10",
    }
    steps = [{"step": step, "step_time_s": step_s * chance.gauss(1.0, 0.01)} for step in range(STEPS)]
    return [{**steps[0], **about}, *steps[1:]]


def main(folder: Path) -> None:
    chance = random.Random(8)
    (folder / "metrics").mkdir(parents=True, exist_ok=True)
    (folder / "nightly.yaml").write_text(CONFIG)
    scenario = Path(__file__).with_name("llama-3.1-70b-64xh100.json")
    (folder / "llama-70b.json").write_text(scenario.read_text())
    last_s = time.time() - 3600
    for night in range(NIGHTS):
        at_s = last_s - (NIGHTS - 1 - night) * DAY_S
        path = folder / "metrics" / time.strftime("%Y-%m-%d.jsonl", time.gmtime(at_s))
        path.write_text("".join(json.dumps(line) + "\n" for line in lines(night, chance)))
        os.utime(path, (at_s, at_s))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/nightly_history.py FOLDER")
    main(Path(sys.argv[1]))
