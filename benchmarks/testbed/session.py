"""A whole session in tune mode on the testbed, by the command that a user types: `asap optimize`.

    python -m benchmarks.testbed.session WORKLOAD [--trials N]

The default plan is measured, the model calibrated, the best proposal measured, and so on until no further
gain is expected. Prints each trial's prediction beside its measurement.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.testbed.launching import write_template
from benchmarks.testbed.workloads import WORKLOADS

REPO = Path(__file__).resolve().parents[2]
FOLDER = REPO / "build" / "testbed"
SETTINGS = {"ASAP_TRIAL_STEPS": "6", "ASAP_TRIAL_WARMUP": "2", "ASAP_TRIAL_RUNS": "2"}


def run_session(name: str, trials: int, folder: Path = FOLDER) -> dict[str, Any]:
    """The report; the session is kept beside the testbed's results."""
    machine = json.loads((folder / "machine.json").read_text())
    workload = next(replace(workload, machine=machine) for workload in WORKLOADS if workload.name == name)
    budget = {"device_hours": 2, "trials": trials}
    request = folder / f"{name}-request.json"
    request.write_text(json.dumps({**workload.request, "mode": "tune", "budget": budget}, indent=1))
    settings = {
        **SETTINGS,
        "ASAP_LAUNCH_TEMPLATES": str(write_template(folder / "templates.toml")),
        "ASAP_DATA_DIR": str(folder / "sessions"),
    }
    session = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    command = [str(Path(sys.executable).with_name("asap")), "optimize", "--json", "--session", session]
    words = ["env", *(f"{key}={value}" for key, value in settings.items()), *command, str(request)]
    done = subprocess.run(words, cwd=REPO, stdout=subprocess.PIPE, text=True, check=True)
    report: dict[str, Any] = json.loads(done.stdout)
    (folder / f"{name}-report.json").write_text(done.stdout)
    return report


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.testbed.session")
    parser.add_argument("workload", choices=[workload.name for workload in WORKLOADS])
    parser.add_argument("--trials", type=int, default=4, metavar="N", help="at most, the first one included")
    args = parser.parse_args()
    print("\n".join(trial_lines(run_session(args.workload, args.trials))))
    return 0


def trial_lines(report: dict[str, Any]) -> list[str]:
    """A line per trial, and why the session stopped."""
    lines = [f"{trial['role']:10}{trial['summary']}: {trial['says']}" for trial in report["trials"]]
    return [*lines, f"stopped: {(report['stopping'] or {}).get('says', 'for no stated reason')}"]


if __name__ == "__main__":
    sys.exit(main())
