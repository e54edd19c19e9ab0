"""Runs a trial: a job made from a template, waited for, read, and repeated where it is not sure enough.

A trial's jobs have the trial's key with a suffix for each repeat. Whoever runs the same order again, after a
crash or in another process, finds the jobs that are there: nothing is launched twice. Not here: which plan
is worth a trial, and whether two may be compared.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tools.errors import InputError
from tools.launch.errors import LaunchError
from tools.launch.job import Job
from tools.launch.launcher import Launcher
from tools.launch.status import Handle
from tools.launch.template import Template
from tools.scenario import Plan, did_you_mean, parse_scenario
from tools.trials.keys import run_key
from tools.trials.measurement import Measurement, pooled
from tools.trials.order import TrialOrder, Watch
from tools.trials.run import CANCELLED, Run, RunTrouble, finish_run, follow
from tools.trials.trial_job import DESCRIBED, SECONDS_AN_HOUR, RunLength, check_cluster, make_job
from tools.trials.turns import own_turn

TURN = "local-turn.lock"
RESOLUTION = 0.02
"""Half an interval that is no wider than this share of the median is sure enough, whatever is compared."""
NEW_BEST = 0.05
"""Half an interval of a plan faster than all before: what later ones are told apart from must be sure."""
RETRIED = ("node_down",)
"""Failures that say nothing about the plan."""
SUBMIT_TRIES, SUBMIT_PAUSE_S = 3, 5.0
Json = dict[str, Any]


@dataclass(frozen=True)
class LaunchedTrials:
    """The trials of an installation: its launchers, its templates, and how long each run is."""

    launcher: Callable[[str], Launcher]
    """Opens the engine of that name, or gives the one that is open."""
    templates: Mapping[str, Template]
    default_template: str
    results: Path
    """Where what jobs leave behind is copied to, one folder a job."""
    length: RunLength = field(default_factory=RunLength)
    most_runs: int = 3
    queue_s: float = 4 * SECONDS_AN_HOUR
    """A job that an engine lets wait so long is given up."""

    def check(self, scenario: Mapping[str, Any], template: str | None = None) -> None:
        """Raises InputError for a scenario that could not be measured here; before anything is launched."""
        described = {name: scenario[name] for name in DESCRIBED}
        check_cluster(self._template(template), parse_scenario(described, need_plan=False))

    def run(self, order: TrialOrder, watch: Watch) -> Json:
        """Returns when the plan is measured, or it is clear that it will not be."""
        runs: list[Run] = []
        while len(runs) < self.most_runs:
            left_hours = order.device_hours - sum(one.device_hours for one in runs)
            one = self._run_once(order, len(runs) + 1, left_hours, watch)
            if one is None:
                break
            runs.append(one)
            if one.cancelled or self._is_enough(runs, order.against_s):
                break
        return _told(order, self._template(order.template), runs)

    def _template(self, name: str | None) -> Template:
        wanted = name or self.default_template
        if wanted not in self.templates:
            raise InputError("template", wanted, did_you_mean(wanted, tuple(self.templates)))
        return self.templates[wanted]

    def _run_once(self, order: TrialOrder, number: int, left_hours: float, watch: Watch) -> Run | None:
        """Nothing where the budget does not even allow a second of it."""
        template, key = self._template(order.template), run_key(order.key, number)
        launcher = self.launcher(template.launcher)
        devices = int(order.scenario["cluster"]["num_devices"])
        wall_s = min(template.limits.wall_s, int(left_hours * SECONDS_AN_HOUR / devices))
        with self._turn(template, watch) as is_ours:
            handle = launcher.find(key)
            if handle is None and not is_ours:
                return Run(key, failure=asdict(CANCELLED), cancelled=True)
            if handle is None and wall_s < 1:
                return None
            if handle is None:
                length = self.length if number == 1 else replace(self.length, profile_steps=0)
                job = make_job(template, order.scenario, order.plan, length, wall_s)
                handle = _submitted(launcher, key, job)
            watch.tell(f"launched {key}", job=key, launcher=launcher.name, template=template.name)
            trouble = follow(launcher, handle, wall_s, self.queue_s, watch)
        return finish_run(launcher, handle, self.results / key, devices, trouble)

    def _turn(self, template: Template, watch: Watch) -> AbstractContextManager[bool]:
        return own_turn(self.results / TURN, watch) if template.launcher == "local" else nullcontext(True)

    def _is_enough(self, runs: list[Run], against_s: float | None) -> bool:
        """A failure that may pass is tried again; a measurement, until its interval tells the difference."""
        last = runs[-1]
        if last.failure:
            return last.failure["kind"] not in RETRIED
        measured = _measured(runs)
        assert measured is not None
        ahead_s = (against_s or measured.step_time_s) - measured.step_time_s
        told_apart = abs(ahead_s) / 2 / measured.step_time_s
        matters = min(told_apart, NEW_BEST) if ahead_s > 0 else told_apart
        return measured.uncertainty <= max(RESOLUTION, matters)


def _submitted(launcher: Launcher, key: str, job: Job) -> Handle:
    """An engine that is out of reach for a moment is asked again: the key keeps it from launching twice."""
    for _ in range(SUBMIT_TRIES - 1):
        try:
            return launcher.submit(key, job)
        except LaunchError:
            time.sleep(SUBMIT_PAUSE_S)
    return launcher.submit(key, job)


def _measured(runs: list[Run]) -> Measurement | None:
    found = [one.measurement for one in runs if one.measurement]
    return pooled(found) if found else None


def _told(order: TrialOrder, template: Template, runs: list[Run]) -> Json:
    measured = _measured(runs)
    traces = next((one.traces for one in runs if one.traces), None)
    last = runs[-1] if runs else None
    cancelled = bool(last and last.cancelled)
    failure = last.failure if last and not measured else None
    if last is None:
        failure = asdict(RunTrouble("no_budget", 1.0, ("the device-hours left do not allow another run",)))
    status = "cancelled" if cancelled else "measured" if measured else "failed"
    return {
        "key": order.key,
        "status": status,
        "template": template.name,
        "runs": [one.key for one in runs],
        "failure": None if status == "measured" else failure,
        "device_hours": sum(one.device_hours for one in runs),
        "seconds": sum(one.seconds for one in runs),
        "traces": traces,
        "terms": _terms(traces, order.plan),
        **(_figures(measured) if measured else {}),
    }


def _terms(traces: str | None, plan: Mapping[str, Any]) -> dict[str, float] | None:
    """Seconds of the parts of a step, where a profile tells them."""
    if traces is None:
        return None
    from tools.trials.terms import read_terms

    return read_terms(Path(traces), Plan.model_validate(dict(plan)))


def _figures(measured: Measurement) -> Json:
    return {
        "step_time_s": measured.step_time_s,
        "interval_s": list(measured.interval_s),
        "confidence": measured.confidence,
        "noise": measured.noise,
        "uncertainty": measured.uncertainty,
        "steps": len(measured.step_times_s),
        "peak_memory_bytes": measured.peak_memory_bytes,
        "nodes": list(measured.nodes),
        "losses": list(measured.losses),
        "fingerprint": dict(measured.fingerprint),
    }
