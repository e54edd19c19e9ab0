"""nightly.yaml: workloads, policy, recipients; parsed and checked, with paths relative to the file."""

from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from graph.request import Approval, Budget, Mode, TrialPolicy
from service.strict_json import JsonObject, parse_object
from tools.errors import InputError
from tools.nightly.findings import MIN_STEP_RATIO
from tools.nightly.night import StatedWorkload
from tools.nightly.review import HOURS_PER_DAY
from tools.scenario.fields import build

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$"
MAX_WORKLOADS = 500
MAX_BYTES = 4 << 20
MAX_SCENARIO_BYTES = 16 << 20
SOURCES = ("traces", "metrics", "uploads")
T = TypeVar("T", bound=BaseModel)

Address = Annotated[str, Field(min_length=1, max_length=2000)]
Email = Annotated[str, Field(max_length=254, pattern=r"^[^\s@<>,;:\"]+@[^\s@<>,;:\"]+$")]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class WatchedWorkload(Strict):
    """A job that runs day after day, and where its newest profiles or metrics are."""

    name: str = Field(pattern=NAME, description="its history is kept under this name")
    scenario: dict[str, Any] | str = Field(
        description="what `asap optimize` takes, with today's plan; in nightly.yaml also a file"
    )
    traces: str | None = Field(
        None,
        min_length=1,
        max_length=1000,
        description="pattern of folders of profiles, one folder per night",
    )
    metrics: str | None = Field(
        None, min_length=1, max_length=1000, description="pattern of metrics files, one file per night"
    )
    uploads: str | None = Field(
        None, min_length=1, max_length=200, description="pattern of the names of uploaded traces"
    )
    hours_per_day: float = Field(
        HOURS_PER_DAY, gt=0, le=24, description="hours per day in which the job runs"
    )

    @model_validator(mode="after")
    def _one_source(self) -> "WatchedWorkload":
        if sum(getattr(self, name) is not None for name in SOURCES) != 1:
            raise ValueError(f"give one of {', '.join(SOURCES)}")
        return self


class Recipients(Strict):
    webhooks: list[Address] = Field([], max_length=20, description="get the report as signed JSON")
    slack: list[Address] = Field(
        [], max_length=20, description="incoming webhooks of Slack, Mattermost and the like"
    )
    emails: list[Email] = Field([], max_length=100)
    when: Literal["always", "alarm"] = Field(
        "always", description="alarm: only with a new regression or a workload that could not be read"
    )


class Policy(Strict):
    """All of a nightly run but its times."""

    workloads: list[WatchedWorkload] = Field(min_length=1, max_length=MAX_WORKLOADS)
    mode: Mode = Field("advise", description="tune also measures plans on the cluster")
    approval: Approval = Field(
        "none", description="person: sessions wait for a decision; policy: trials keep to `policy`"
    )
    policy: TrialPolicy | None = None
    template: str | None = Field(None, max_length=253, description="the launch template of trials")
    budget: Budget | None = None
    least_change: float = Field(
        MIN_STEP_RATIO, gt=0, lt=1, description="a smaller change of the step time is not reported"
    )
    gain: float = Field(
        1.05, ge=1, le=10, description="re-optimize if the best plan is predicted to be this much faster"
    )
    reoptimize: bool = True
    recipients: Recipients = Recipients()

    @field_validator("policy", mode="before")
    @classmethod
    def _allow_only_what_is_stated(cls, policy: object) -> object:
        """Nobody watches a night: trials may change the fields that are listed, and without a list none."""
        if isinstance(policy, dict) and policy.get("fields") is None:
            return {**policy, "fields": []}
        return policy

    def request(self, described: StatedWorkload) -> StatedWorkload:
        """The request of a session about this scenario."""
        options = self.model_dump(mode="json", include={"mode", "approval", "policy", "template"})
        return {**described, **{name: value for name, value in options.items() if value is not None}}

    @model_validator(mode="after")
    def _names_once(self) -> "Policy":
        names = [workload.name for workload in self.workloads]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"workload {min(twice)} is listed twice")
        return self


class Config(Policy):
    """The content of nightly.yaml."""

    report: Path | None = Field(
        None, description="folder of the pages; reports/ of the data folder if absent"
    )


def parse(kind: type[T], content: object) -> T:
    """Raises InputError that names the field as it is written; nothing of an address, it may hold a token."""
    try:
        return build(kind, content)
    except InputError as fault:
        is_address = fault.path.startswith(("recipients.slack", "recipients.webhooks"))
        given = "an address" if is_address else fault.given
        raise InputError(fault.path, given, fault.rule) from None


def check_modes(policy: Policy, *, may_tune: bool, may_wait: bool) -> None:
    """Tuning measures plans on the cluster, which an installation must have set up."""
    if policy.mode == "tune" and not may_tune:
        allowed = "this installation runs no trials: it has no launch templates (ASAP_LAUNCH_TEMPLATES)"
        raise InputError("mode", policy.mode, f"allowed: advise; {allowed}")
    if policy.approval == "person" and not may_wait:
        raise InputError("approval", policy.approval, "only 'asap serve' can wait for a person")


class _Loader(yaml.SafeLoader):
    """Rejects duplicate keys: one of them would be silently lost."""

    def compose_mapping_node(self, anchor: dict[object, yaml.Node]) -> yaml.MappingNode:
        """Here, where a merge (<<) has not yet added the keys of others."""
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.composer.ComposerError(None, None, f"{key.value} is listed twice", key.start_mark)
            seen.add(key.value)
        return node


def load_config(path: Path) -> Config:
    """Raises InputError; scenarios of workloads are read when they run."""
    return parse(Config, load_yaml(path))


def load_yaml(path: Path, field: str = "--config") -> JsonObject:
    content = _read(path, MAX_BYTES, field)
    try:
        # A loader of the safe kind, which makes plain data only.
        document = yaml.load(content, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InputError(field, str(path), f"must be YAML: {error.problem}{line}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(field, str(path), f"must be YAML: {type(error).__name__}") from None
    if not isinstance(document, dict) or not all(isinstance(name, str) for name in document):
        raise InputError(field, str(path), "must hold workloads and options")
    return document


def load_scenario(workload: WatchedWorkload, base: Path) -> StatedWorkload:
    """The scenario itself, or the content of the file that it names."""
    if not isinstance(workload.scenario, str):
        return workload.scenario
    path = base / workload.scenario
    content = _read(path, MAX_SCENARIO_BYTES, "scenario")
    return parse_object(content.removeprefix(b"\xef\xbb\xbf").strip(), str(path))


def _read(path: Path, max_bytes: int, field: str) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
    except OSError as error:
        raise InputError(field, str(path), f"{error.strerror or error}; give a readable file") from None
    if len(content) > max_bytes:
        raise InputError(field, str(path), f"must be at most {max_bytes >> 20} MiB")
    return content
