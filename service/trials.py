"""Wires trials to this installation: its launch templates, its folders, how long a run is."""

from functools import cache
from pathlib import Path

from graph.request import Request
from service.settings import Settings, process_environment
from tools.errors import InputError
from tools.launch.launcher import Launcher
from tools.launch.opening import LaunchSettings, open_launchers
from tools.launch.template import Template
from tools.launch.template_file import read_templates
from tools.scenario import did_you_mean
from tools.trials.runner import LaunchedTrials
from tools.trials.trial_job import RunLength

JOBS, RESULTS = "jobs", "trials"


def open_trials(settings: Settings) -> LaunchedTrials | None:
    """Nothing where no launch templates are registered. No engine is reached before a job needs it."""
    if settings.launch_templates is None:
        return None
    templates = read_templates(settings.launch_templates)
    launch = LaunchSettings(
        root=jobs_folder(settings),
        environment=process_environment(),
        kubeconfig=settings.kubeconfig,
        kube_context=settings.kube_context,
    )

    @cache
    def launcher(name: str) -> Launcher:
        own = {key: template for key, template in templates.items() if template.launcher == name}
        return open_launchers(own, launch)[name]

    return LaunchedTrials(
        launcher=launcher,
        templates=templates,
        default_template=_default_template(settings, templates),
        results=settings.data_dir.absolute() / RESULTS,
        length=RunLength(settings.trial_steps, settings.trial_warmup, settings.trial_profile_steps),
        most_runs=settings.trial_runs,
        queue_s=settings.trial_queue_s,
    )


def jobs_folder(settings: Settings) -> Path:
    return (settings.jobs_dir or settings.data_dir / JOBS).absolute()


def check_tune(settings: Settings, request: Request) -> None:
    """Raises InputError where the request asks for trials that cannot be had; before anything is queued."""
    if request.mode != "tune":
        return
    trials = open_trials(settings)
    if trials is None:
        says = "this installation runs no trials: it has no launch templates (ASAP_LAUNCH_TEMPLATES)"
        raise InputError("mode", "tune", says)
    trials.check(request.scenario, request.template)


def _default_template(settings: Settings, templates: dict[str, Template]) -> str:
    """The one that is set, or the only one there is."""
    wanted = settings.launch_template or (next(iter(templates)) if len(templates) == 1 else None)
    if wanted is None or wanted not in templates:
        allowed = did_you_mean(wanted or "", tuple(templates)) if templates else "the file registers none"
        raise InputError("ASAP_LAUNCH_TEMPLATE", wanted, allowed)
    return wanted
