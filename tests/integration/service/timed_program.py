"""Stands for a training program in trials: notes that it ran, takes a moment, writes what it measured.

python timed_program.py SCENARIO --key KEY --out FOLDER --ledger FILE [--hang-every N]
"""

import argparse
import json
import time
from pathlib import Path

STEPS = 20


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("scenario", type=Path)
    for name in ("key", "out", "ledger"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--hang-every", type=int, default=0)
    args = parser.parse_args()
    with args.ledger.open("a") as ledger:
        ledger.write(f"{args.key}\n")
    is_hanging = args.hang_every and len(args.ledger.read_text().split()) % args.hang_every == 0
    time.sleep(3600 if is_hanging else 0.5)
    plan = json.loads(args.scenario.read_text())["plan"]
    result = {
        "step_times_s": [0.01 * plan["tp"] + 1e-6 * number for number in range(STEPS)],
        "losses": [10.0 - 0.1 * number for number in range(STEPS)],
        "fingerprint": {"program": "timed", "steps": STEPS},
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
