"""nightly.yaml: workloads, policy, recipients; parsed and checked, with paths relative to the file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from service.cli.io import MAX_SCENARIO_BYTES, read_object
from tools.errors import InputError
from tools.nightly.findings import LEAST_STEP_RATIO
from tools.nightly.review import HOURS_PER_DAY

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$"
MOST_WORKLOADS = 500
SOURCES = ("traces", "metrics", "uploads")
T = TypeVar("T", bound=BaseModel)

Address = Annotated[str, Field(min_length=1, max_length=2000)]
Email = Annotated[str, Field(max_length=254, pattern=r"^[^\s@<>,;:\"]+@[^\s@<>,;:\"]+$")]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Workload(Strict):
    """One job that runs day after day, and where its newest profiles or metrics lie."""

    name: str = Field(pattern=NAME, description="its history is kept under this name")
    scenario: dict[str, Any] | str = Field(
        description="what `asap optimize` takes, with today's plan; in nightly.yaml also a file"
    )
    traces: str | None = Field(
        None, min_length=1, max_length=1000, description="pattern of folders of profiles, one folder a night"
    )
    metrics: str | None = Field(
        None, min_length=1, max_length=1000, description="pattern of metrics files, one file a night"
    )
    uploads: str | None = Field(
        None, min_length=1, max_length=200, description="pattern of the names of uploaded traces"
    )
    hours_per_day: float = Field(HOURS_PER_DAY, gt=0, le=24, description="in which the job runs")

    @model_validator(mode="after")
    def _one_source(self) -> "Workload":
        given = [name for name in SOURCES if getattr(self, name)]
        if len(given) != 1:
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


class Budget(Strict):
    """What each session of a run may spend; never more than the installation allows."""

    session_s: float | None = Field(None, gt=0, le=86_400)
    tokens: int | None = Field(None, ge=0, le=10**9)
    cost: float | None = Field(None, ge=0, le=10**6)
    device_hours: float | None = Field(None, ge=0, le=10**6, description="ranks times hours of its trials")
    trials: int | None = Field(None, ge=0, le=64, description="plans it may measure")


class TrialPolicy(Strict):
    fields: list[str] = Field([], max_length=50, description="of the plan, which trials may change")


class Policy(Strict):
    """All of a nightly run but when it runs."""

    workloads: list[Workload] = Field(min_length=1, max_length=MOST_WORKLOADS)
    mode: Literal["advise", "tune"] = Field("advise", description="tune also measures plans on the cluster")
    approval: Literal["none", "person", "policy"] = Field(
        "none", description="person: sessions wait for a decision; policy: trials keep to `policy`"
    )
    policy: TrialPolicy | None = None
    template: str | None = Field(None, max_length=253, description="the launch template of trials")
    budget: Budget | None = None
    least_change: float = Field(
        LEAST_STEP_RATIO, gt=0, lt=1, description="a smaller change of the step time is not told"
    )
    gain: float = Field(1.05, ge=1, le=10, description="re-optimize where the best plan is so much faster")
    reoptimize: bool = True
    recipients: Recipients = Recipients()

    def request(self, described: Mapping[str, Any]) -> dict[str, Any]:
        """What a session is asked for."""
        options = self.model_dump(mode="json", include={"mode", "approval", "policy", "template"})
        return {**described, **{name: value for name, value in options.items() if value is not None}}

    @model_validator(mode="after")
    def _names_once(self) -> "Policy":
        names = [one.name for one in self.workloads]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"workload {twice[0]} is there twice")
        return self


class Config(Policy):
    """The content of nightly.yaml."""

    report: Path | None = Field(
        None, description="folder of the pages; reports/ of the data folder if absent"
    )


def parse(kind: type[T], given: Mapping[str, Any]) -> T:
    """Raises InputError that names the field as it is written."""
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(_place(first["loc"]) or "body", _shown(first), _reason(first)) from None


def _place(loc: tuple[int | str, ...]) -> str:
    """`workloads[1].traces`; the branches of a union are pydantic's, not the user's."""
    place = ""
    for part in loc:
        if isinstance(part, int):
            place += f"[{part}]"
        elif part not in ("str", "dict[str,any]"):
            place += f".{part}" if place else part
    return place


def _shown(error: Any) -> object:  # noqa: ANN401 - pydantic's ErrorDetails
    """Never a whole object, and nothing of an address, which may hold a token."""
    given = error["input"]
    if error["type"] == "missing":
        return "nothing"
    if {"slack", "webhooks"} & set(error["loc"]):
        return "an address"
    return type(given).__name__ if isinstance(given, dict | list) else given


def _reason(error: Any) -> str:  # noqa: ANN401 - pydantic's ErrorDetails
    message: str = error["msg"]
    return message.removeprefix("Value error, ")


def check_modes(policy: Policy, *, may_tune: bool, may_wait: bool) -> None:
    """Tuning measures plans on the cluster, which an installation must have set up."""
    if policy.mode == "tune" and not may_tune:
        allowed = (
            "advise; this installation runs no trials: it has no launch templates (ASAP_LAUNCH_TEMPLATES)"
        )
        raise InputError("mode", policy.mode, f"allowed: {allowed}")
    if policy.approval == "person" and not may_wait:
        raise InputError("approval", policy.approval, "only 'asap serve' can wait for a person")


MOST_BYTES = 4 << 20


class _Loader(yaml.SafeLoader):
    """Refuses a key that is written twice: one of them would be silently lost."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:  # noqa: ANN401 - as PyYAML has it
        """Here, where a merge (<<) has not yet added the keys of others."""
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.composer.ComposerError(None, None, f"{key.value} is there twice", key.start_mark)
            seen.add(key.value)
        return node


def load_config(path: Path) -> Config:
    """Raises InputError; whether each workload's scenario can be read is found out when it runs."""
    return parse(Config, load_yaml(path))


def load_yaml(path: Path, field: str = "--config") -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise InputError(field, str(path), f"{error.strerror or error}; give a readable file") from None
    if len(content) > MOST_BYTES:
        raise InputError(field, str(path), f"must be at most {MOST_BYTES >> 20} MiB")
    try:
        # A loader of the safe kind, which makes plain data only.
        given = yaml.load(content, Loader=_Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(field, str(path), f"must be YAML: {reason}") from None
    if not isinstance(given, dict) or not all(isinstance(name, str) for name in given):
        raise InputError(field, str(path), "must hold workloads and options")
    return given


def scenario_of(workload: Workload, base: Path) -> dict[str, Any]:
    """The scenario itself, or what the file that it names holds."""
    if isinstance(workload.scenario, dict):
        return workload.scenario
    try:
        return dict(read_object(str(base / workload.scenario), MAX_SCENARIO_BYTES))
    except InputError as error:
        field = "scenario" if error.field == "FILE" else error.field
        raise InputError(field, error.given, error.allowed) from None
