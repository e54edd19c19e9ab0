"""The testbed behind ASAP itself: its registered launch template, a run of one plan from it, and whole
sessions by the command that a user types.
"""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.testbed.workloads import HOSTS, MBIT, RANKS, WORKLOADS, Workload
from tools.launch.launcher import Job
from tools.launch.local import LocalLauncher
from tools.launch.status import JobState
from tools.launch.template import read_templates
from tools.model.runs import Measured, Run
from tools.scenario import Plan
from tools.trials.gain import TERMS
from tools.trials.measure import TRACES, read_measurement, read_terms

REPO = Path(__file__).resolve().parents[2]
TEMPLATE = "testbed"
WALL_S = 900
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where ip, tc and nsenter lie."""


def write_template(path: Path) -> Path:
    """A file as an administrator writes it; jobs bring numbers and paths only."""
    placeholders = ("steps", "warmup", "profile_steps", "seed")
    numbers = [word for name in placeholders for word in (f"--{name.replace('_', '-')}", f"{{{name}}}")]
    testbed = ["--hosts", str(HOSTS), "--mbit", str(MBIT), "--ranks", "{nproc}"]
    command = [sys.executable, "-m", "benchmarks.testbed", "{scenario}", "--out", "{out}", *testbed, *numbers]
    template = {"name": TEMPLATE, "launcher": "local", "command": command, "workdir": str(REPO)}
    lines = [f"{name} = {json.dumps(value)}" for name, value in template.items()]
    lines += [f"limits = {{ wall_s = {WALL_S}, devices = {RANKS} }}", f'environment = {{ PATH = "{PATH}" }}']
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["[[template]]", *lines]) + "\n")
    return path


def run_plan(
    workload: Workload, plan: Plan, folder: Path, key: str, steps: int, warmup: int, profile_steps: int
) -> Run:
    """Measured as a job of the launcher; a job that has run under this key is read, not run again."""
    templates = read_templates(write_template(folder / "templates.toml"))
    launcher = LocalLauncher(folder / "jobs", templates, environment={})
    job = Job(
        TEMPLATE,
        _scenario(workload, plan),
        nproc=RANKS,
        steps=steps,
        warmup=warmup,
        profile_steps=profile_steps,
    )
    handle = launcher.submit(key, job)
    status = launcher.wait(handle, WALL_S + 60)
    if status.state is not JobState.SUCCEEDED:
        raise RuntimeError(f"{key}: {status.state} {status.detail}; see {folder}/jobs/{key}/log.txt")
    out = folder / "jobs" / key / "out"
    measured = read_measurement(out)
    terms = {name: s for name, s in (read_terms(out / TRACES, plan) or {}).items() if name in TERMS and s > 0}
    what = Measured(step_time_s=measured.step_time_s, noise=min(measured.uncertainty, 1.0), terms_s=terms)
    scenario = workload.scenario.model_copy(update={"plan": plan})
    return Run(scenario=scenario, measured=what, id=key, source="trial")


def _scenario(workload: Workload, plan: Plan) -> dict[str, Any]:
    scenario = workload.scenario.model_copy(update={"plan": plan})
    described: dict[str, Any] = scenario.model_dump(mode="json", exclude_none=True)
    return described


FOLDER = REPO / "build" / "testbed"
SETTINGS = {"ASAP_TRIAL_STEPS": "6", "ASAP_TRIAL_WARMUP": "2", "ASAP_TRIAL_RUNS": "2"}


def run_session(name: str, trials: int) -> dict[str, Any]:
    """The report of `asap optimize` in tune mode, kept beside the testbed's results: the default plan is
    measured, the model calibrated, the best proposal measured, until no further gain is expected."""
    machine = json.loads((FOLDER / "machine.json").read_text())
    workload = next(replace(workload, machine=machine) for workload in WORKLOADS if workload.name == name)
    budget = {"device_hours": 2, "trials": trials}
    request = FOLDER / f"{name}-request.json"
    request.write_text(json.dumps({**workload.request, "mode": "tune", "budget": budget}, indent=1))
    settings = {
        **SETTINGS,
        "ASAP_LAUNCH_TEMPLATES": str(write_template(FOLDER / "templates.toml")),
        "ASAP_DATA_DIR": str(FOLDER / "sessions"),
    }
    session = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    command = [str(Path(sys.executable).with_name("asap")), "optimize", "--json", "--session", session]
    words = ["env", *(f"{key}={value}" for key, value in settings.items()), *command, str(request)]
    done = subprocess.run(words, cwd=REPO, stdout=subprocess.PIPE, text=True, check=True)
    report: dict[str, Any] = json.loads(done.stdout)
    (FOLDER / f"{name}-report.json").write_text(done.stdout)
    return report


def trial_lines(report: dict[str, Any]) -> list[str]:
    """A line per trial, and why the session stopped."""
    lines = [f"{trial['role']:10}{trial['summary']}: {trial['says']}" for trial in report["trials"]]
    return [*lines, f"stopped: {(report['stopping'] or {}).get('says', 'for no stated reason')}"]
