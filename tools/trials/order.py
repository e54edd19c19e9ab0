"""What a trial is to do and what it returns, and the launcher's job made from it.

The key is the same for the same trial of the same session, so no trial is launched twice.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal, Protocol

from pydantic import Field

from tools.errors import InputError
from tools.frameworks.formats import EXPORT_FORMATS, FORMAT_ALIASES, export_plan
from tools.launch.launcher import ConfigFile, Job
from tools.launch.template import Template, placeholder_of
from tools.scenario import Plan, Scenario
from tools.scenario.fields import JsonObject
from tools.scenario.spec import ClosedModel
from tools.trials.gate import PairedRatio, Refusal

MAX_CHARACTERS = 37
"""Three fewer than a launcher's key may have: repeats add a suffix."""
_PLAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_HEAD, _DIGEST = 14, 12
DESCRIBED = ("model", "cluster", "training")
SECONDS_PER_HOUR = 3600
TrialStatus = Literal["measured", "failed", "cancelled"]


def trial_key(session_id: str, number: int) -> str:
    """The session's own id if it is valid in a job's name, else its beginning and a digest."""
    key = f"{session_id.replace('.', '-')}-{number}"
    if _PLAIN.fullmatch(key) and len(key) <= MAX_CHARACTERS and "-" not in session_id:
        return key
    head = re.sub(r"[^a-z0-9]+", "-", session_id.lower())[:_HEAD].strip("-") or "trial"
    return f"{head}-{hashlib.sha256(session_id.encode()).hexdigest()[:_DIGEST]}-{number}"


def run_key(key: str, run: int, *, of_reference: bool = False) -> str:
    """The first run has the trial's own key, the second -r2; the first run of the plan beside it -b1."""
    if of_reference:
        return f"{key}-b{run}"
    return key if run == 1 else f"{key}-r{run}"


@dataclass(frozen=True)
class TrialReference:
    """The best plan so far, which another is compared with."""

    key: str
    plan: Plan
    step_time_s: float
    spread: float
    """The spread of a step or of the median, whichever is wider, over the median."""


@dataclass(frozen=True)
class TrialOrder:
    """One plan to be measured. The key makes it idempotent: the same key is the same trial."""

    key: str
    scenario: Scenario
    """Its model, cluster and training are run; its own plan is not."""
    plan: Plan
    device_hours: float
    """The maximum, repeats included."""
    against: TrialReference | None = None
    """What to compare with; None for the first measurement."""
    template: str | None = None
    """The launch template; None for the installation's default."""


class TrialFailure(ClosedModel):
    """Why a run says nothing about the plan's speed; the words are the job's own, so they are only data."""

    kind: str
    confidence: float
    evidence: list[str]


class TrialOutcome(ClosedModel):
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
    paired: PairedRatio | None = None
    """Where noise is large, the best plan so far runs alternately with this one, and `step_time_s` is that
    plan's time by the ratio of the pairs."""
    steps: int | None = None
    peak_memory_bytes: int | None = None
    nodes: list[str] = Field(default_factory=list)


class TrialResult(TrialOutcome):
    """What a runner returns: the outcome with what only the fair-comparison gate reads."""

    status: TrialStatus
    losses: list[float] = Field(default_factory=list)
    fingerprint: JsonObject = Field(default_factory=dict)


class EndedTrial(Protocol):
    """What the choice of the next plan reads of a trial that has ended."""

    @property
    def key(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def plan(self) -> Plan: ...
    @property
    def step_time_s(self) -> float | None: ...
    @property
    def uncertainty(self) -> float | None: ...
    @property
    def paired(self) -> PairedRatio | None: ...
    @property
    def steps(self) -> int | None: ...
    @property
    def seconds(self) -> float: ...
    @property
    def peak_memory_bytes(self) -> int | None: ...
    @property
    def terms(self) -> Mapping[str, float] | None: ...
    @property
    def failure(self) -> TrialFailure | None: ...
    @property
    def refusals(self) -> Sequence[Refusal]: ...


@dataclass(frozen=True)
class TrialProgress:
    """What became of a trial's job: launched, queued, running."""

    phase: str
    job: str
    launcher: str | None = None
    template: str | None = None
    nodes: list[str] = field(default_factory=list)


class TrialObserver(Protocol):
    """Receives the progress of a trial, and may cancel it."""

    def emit(self, progress: TrialProgress) -> None: ...

    def must_cancel(self) -> bool:
        """True ends the job; an observer that must leave it running, as at a shutdown, raises instead."""
        ...


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
    config = None
    if "config" in map(placeholder_of, template.command):
        framework = scenario.training.framework
        if FORMAT_ALIASES.get(framework, framework) not in EXPORT_FORMATS:
            allowed = f"the template {template.name} needs an exported plan: {', '.join(EXPORT_FORMATS)}"
            raise InputError("training.framework", framework, allowed)
        export = export_plan(scenario.model_copy(update={"plan": plan}), framework)
        config = ConfigFile(export.file_name, export.text)
    return Job(
        template=template.name,
        scenario={**described, "plan": plan.model_dump(mode="json")},
        nnodes=nnodes,
        nproc=nproc,
        wall_s=wall_s,
        config=config,
        **asdict(length),
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
