"""From a key and a job to a folder with a recorded intent: what all launchers do before their engine."""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tools.errors import InputError
from tools.launch.command import fill
from tools.launch.files import INPUTS, OUT
from tools.launch.folder import Intent, JobFolder
from tools.launch.job import SCENARIO_FILE, Job, check_job, get_template
from tools.launch.template import Template


@dataclass(frozen=True)
class Place:
    """How a launcher's jobs see the world."""

    launcher: str
    root: Path
    """The service's folder for jobs."""
    rendezvous: str | None = None
    """What stands for {rendezvous}; None where the engine has its own way."""
    inherited: Mapping[str, str] = field(default_factory=dict)
    """The service's own environment, of which a template may name variables to pass on."""
    for_others: bool = False
    """Whether jobs run as another user than the service."""


@dataclass(frozen=True)
class Prepared:
    folder: JobFolder
    intent: Intent
    template: Template


def prepare(place: Place, templates: Mapping[str, Template], key: str, job: Job) -> Prepared:
    """Checks everything, writes the inputs and the intent. Another job under the same key is refused."""
    folder = JobFolder.of(place.root, key)
    template = get_template(templates, job, place.launcher)
    check_job(job, template)
    wanted = _intent(place, folder, template, key, job)
    folder.make(for_others=place.for_others)
    with folder.submission():
        intent = folder.find_intent() or _record(place, folder, wanted, job)
    if intent.digest != wanted.digest or intent.launcher != place.launcher:
        raise InputError("key", key, "has started another job; a new job needs a key of its own")
    return Prepared(folder, intent, template)


def _intent(place: Place, folder: JobFolder, template: Template, key: str, job: Job) -> Intent:
    seen = Path(template.kubernetes.mount_path) / key if template.kubernetes else folder.path
    return Intent(
        key=key,
        launcher=place.launcher,
        template=template.name,
        digest=job.digest(),
        mark=f"{key}.{secrets.token_hex(8)}",
        command=fill(template.command, _values(place, seen, key, job)),
        environment=_environment(place, template, job),
        workdir=template.workdir or str(seen),
        nnodes=job.nnodes,
        nproc=job.nproc,
        wall_s=job.wall_s or template.limits.wall_s,
    )


def _record(place: Place, folder: JobFolder, intent: Intent, job: Job) -> Intent:
    """Inputs first: where there is an intent, they are complete."""
    scenario = json.dumps(dict(job.scenario), indent=1) + "\n"
    folder.add_input(SCENARIO_FILE, scenario, for_others=place.for_others)
    if job.config:
        folder.add_input(job.config.name, job.config.text, for_others=place.for_others)
    return folder.record_intent(intent)


def _values(place: Place, seen: Path, key: str, job: Job) -> dict[str, str]:
    numbers = ("steps", "warmup", "profile_steps", "seed", "nnodes", "nproc")
    values = {name: str(getattr(job, name)) for name in numbers}
    values |= {"scenario": str(seen / INPUTS / SCENARIO_FILE), "out": str(seen / OUT), "key": key}
    if place.rendezvous is not None:
        values["rendezvous"] = place.rendezvous
    if job.config:
        values["config"] = str(seen / INPUTS / job.config.name)
    return values


def _environment(place: Place, template: Template, job: Job) -> dict[str, str]:
    """A request replaces the template's value only of a name that it is allowed to set."""
    inherited = {
        name: place.inherited[name] for name in template.environment_inherited if name in place.inherited
    }
    return {**inherited, **template.environment, **job.environment}
