"""The testbed behind ASAP's own local launcher: its registered template, and a run of one plan from it."""

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.testbed.workloads import HOSTS, MBIT, RANKS, Workload
from tools.calibrate.runs import Measured, Run
from tools.launch.job import Job
from tools.launch.local import LocalLauncher
from tools.launch.status import State
from tools.launch.template import read_templates
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
    if status.state is not State.SUCCEEDED:
        raise RuntimeError(f"{key}: {status.state} {status.detail}; see {folder}/jobs/{key}/log.txt")
    out = folder / "jobs" / key / "out"
    measured = read_measurement(out)
    terms = {name: s for name, s in (read_terms(out / TRACES, plan) or {}).items() if name in TERMS and s > 0}
    what = Measured(step_time_s=measured.step_time_s, noise=min(measured.uncertainty, 1.0), terms_s=terms)
    return Run(workload.scenario.model_copy(update={"plan": plan}), what, id=key, source="trial")


def _scenario(workload: Workload, plan: Plan) -> dict[str, Any]:
    scenario = workload.scenario.model_copy(update={"plan": plan})
    described: dict[str, Any] = scenario.model_dump(mode="json", exclude_none=True)
    return described
