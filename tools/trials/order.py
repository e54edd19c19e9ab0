"""What a trial is to do and what it returns, and the launcher's job made from it.

The key is the same for the same trial of the same session, so no trial is launched twice.
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Literal, Protocol

from pydantic import Field

from tools.errors import InputError
from tools.frameworks.formats import EXPORT_FORMATS, FORMAT_ALIASES, export_plan
from tools.launch.launcher import ConfigFile, Job
from tools.launch.template import Template, placeholder_of
from tools.scenario import Plan, Scenario
from tools.scenario.fields import JsonObject
from tools.scenario.spec import Result

MAX_CHARACTERS = 37
"""Three fewer than a launcher's key may have: repeats add a suffix."""
_PLAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_HEAD, _DIGEST = 14, 12


def trial_key(session_id: str, number: int) -> str:
    """The session's own id if it is valid in a job's name, else its beginning and a digest."""
    key = f"{session_id.replace('.', '-')}-{number}"
    if _PLAIN.fullmatch(key) and len(key) <= MAX_CHARACTERS and "-" not in session_id:
        return key
    head = re.sub(r"[^a-z0-9]+", "-", session_id.lower())[:_HEAD].strip("-") or "trial"
    return f"{head}-{hashlib.sha256(session_id.encode()).hexdigest()[:_DIGEST]}-{number}"


def run_key(key: str, run: int) -> str:
    """The first run has the trial's own key, the second -r2."""
    return key if run == 1 else f"{key}-r{run}"


Status = Literal["measured", "failed", "cancelled"]


@dataclass(frozen=True)
class TrialOrder:
    """One plan to be measured. The key makes it idempotent: the same key is the same trial."""

    key: str
    scenario: Scenario
    """Its model, cluster and training are run; its own plan is not."""
    plan: Plan
    device_hours: float
    """The maximum, repeats included."""
    against_s: float | None = None
    """The step time to compare with; None for the first measurement."""
    template: str | None = None
    """The launch template; None for the installation's default."""


class TrialFailure(Result):
    """Why a run says nothing about the plan's speed; the words are the job's own, so they are only data."""

    kind: str
    confidence: float
    evidence: list[str]


class TrialOutcome(Result):
    """What a trial cost and measured; the figures are absent if it failed."""

    key: str
    template: str
    runs: list[str]
    failure: TrialFailure | None
    device_hours: float
    seconds: float
    traces: str | None
    terms: dict[str, float] | None = None
    """Seconds of parts of the step, if there is a profile."""
    step_time_s: float | None = None
    interval_s: tuple[float, float] | None = None
    confidence: float | None = None
    noise: float | None = None
    uncertainty: float | None = None
    steps: int | None = None
    peak_memory_bytes: int | None = None
    nodes: list[str] = Field(default_factory=list)


class TrialResult(TrialOutcome):
    """What a runner returns: the outcome with what only the fair-comparison gate reads."""

    status: Status
    losses: list[float] = Field(default_factory=list)
    fingerprint: JsonObject = Field(default_factory=dict)


class TrialObserver(Protocol):
    """Receives the progress of a trial, and may cancel it."""

    def emit(self, phase: str, **content: object) -> None: ...

    def must_cancel(self) -> bool:
        """True ends the job. An observer that must leave the job running, as for a worker that shuts down,
        raises instead."""
        ...


DESCRIBED = ("model", "cluster", "training")
SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class RunLength:
    """The same for all trials of an installation, so that they are comparable."""

    steps: int = 20
    warmup: int = 3
    profile_steps: int = 2
    seed: int = 0


def make_job(template: Template, scenario: Scenario, plan: Plan, length: RunLength, wall_s: int) -> Job:
    described = scenario.model_dump(mode="json", include=set(DESCRIBED), exclude_defaults=True)
    nnodes, nproc = ranks_of(template, scenario)
    return Job(
        template=template.name,
        scenario={**described, "plan": plan.model_dump(mode="json")},
        nnodes=nnodes,
        nproc=nproc,
        steps=length.steps,
        warmup=length.warmup,
        profile_steps=length.profile_steps,
        seed=length.seed,
        wall_s=wall_s,
        config=_config(template, scenario.model_copy(update={"plan": plan})),
    )


def ranks_of(template: Template, scenario: Scenario) -> tuple[int, int]:
    """(nodes, processes on each); on this machine all ranks share one node, whatever the scenario models."""
    cluster = scenario.cluster
    if template.launcher == "local" or cluster.num_devices <= cluster.devices_per_node:
        return 1, cluster.num_devices
    if cluster.num_devices % cluster.devices_per_node:
        allowed = f"must be a multiple of devices_per_node ({cluster.devices_per_node}): nodes run equal jobs"
        raise InputError("cluster.num_devices", cluster.num_devices, allowed)
    return cluster.num_devices // cluster.devices_per_node, cluster.devices_per_node


def check_cluster(template: Template, scenario: Scenario) -> None:
    """Raises InputError if the template cannot run that many ranks."""
    nnodes, _ = ranks_of(template, scenario)
    limits, devices = template.limits, scenario.cluster.num_devices
    if devices > limits.devices:
        allowed = f"the launch template {template.name} runs at most {limits.devices} ranks"
        raise InputError("cluster.num_devices", devices, allowed)
    if nnodes > limits.nodes:
        allowed = f"that is {nnodes} nodes; the launch template {template.name} runs at most {limits.nodes}"
        raise InputError("cluster.num_devices", devices, allowed)


def _config(template: Template, scenario: Scenario) -> ConfigFile | None:
    if "config" not in map(placeholder_of, template.command):
        return None
    framework = scenario.training.framework
    if FORMAT_ALIASES.get(framework, framework) not in EXPORT_FORMATS:
        allowed = f"the template {template.name} needs an exported plan: {', '.join(EXPORT_FORMATS)}"
        raise InputError("training.framework", framework, allowed)
    export = export_plan(scenario, framework)
    return ConfigFile(export.file_name, export.text)
