"""One night of one workload as a record, which nights are comparable, and what the job states in `job.yaml`.

The plan is not part of the comparison key: a change of plan that made the step slower must be found.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import AliasChoices, ConfigDict, Field, ValidationError

from tools.errors import DataError, InputError
from tools.recommend.report import PlanFields
from tools.scenario import Scenario
from tools.scenario.fields import StrictModel, input_error
from tools.scenario.spec import TRAINING_OPTIONS, ClosedModel, PlanValue
from tools.trace.parts import StepPart

FORMAT = 1
StatedWorkload = Mapping[str, Any]
"""A scenario as its author wrote it: the job's own plan is merged into it before it is parsed."""
ROUTING_GROUPS = ("n_group", "topk_group")
FILE = "job.yaml"
MAX_BYTES = 1 << 20
MAX_ENTRIES = 10_000
ENVIRONMENT_PARTS = ("versions", "nodes", "data", "plan")
_WORDS: PlanFields = {"true": True, "false": False, "null": None, "": None}


class StoredResult(ClosedModel):
    """Base of what the database keeps: fields of a newer release are ignored when an older one reads them."""

    model_config = ConfigDict(extra="ignore")


class SlowRank(StoredResult):
    """A rank whose own work took longer than that of the median rank."""

    rank: int
    node: str | None = None
    ratio: float
    """Its own work over the median rank's, minus 1."""


class RunEnvironment(StoredResult):
    """What may explain a change. Empty or None means "not recorded", which never counts as a change."""

    versions: dict[str, str] = Field(default_factory=dict)
    plan: PlanFields = Field(default_factory=dict)
    nodes: list[str] = Field(default_factory=list)
    data: str | None = None


class Night(StoredResult):
    """All times in seconds, all sizes in bytes, all ratios plain."""

    format: int = FORMAT
    key: str
    """Which profile or file was measured: the same one again is the same night."""
    at: float
    """Seconds since 1970."""
    contract: str = ""
    """Only nights with the same one are comparable: a digest of model, training and number of devices."""
    num_devices: int = 1
    num_steps: int = 0
    step_time_s: float
    step_error_ratio: float | None = None
    """Standard error of `step_time_s` by the scatter of that night's own steps, over it."""
    mfu: float | None = None
    terms_s: dict[str, float] = Field(default_factory=dict)
    """Parts of the step that add up to it, if the profile has them."""
    rank_spread_ratio: float | None = None
    """How much longer the slowest rank's own work takes than the median rank's, over the step."""
    peak_memory_bytes: float | None = None
    slow_ranks: list[SlowRank] = Field(default_factory=list)
    parts: list[StepPart] = Field(default_factory=list)
    """What the traces' mean step is made of; empty without traces."""
    environment: RunEnvironment = Field(
        default_factory=RunEnvironment,
        # Records of release 0.1 have the second name.
        validation_alias=AliasChoices("environment", "surroundings"),
    )
    source: str = ""
    notes: list[str] = Field(default_factory=list)


def parse_night(record: object) -> Night:
    """From the database; a record that cannot be read is not the user's fault."""
    try:
        return Night.model_validate(record)
    except ValidationError as error:
        fault = input_error(error, Night)
        raise DataError(f"a stored night cannot be read: {fault}; remove it from the table nights") from None


def contract_of(scenario: Scenario) -> str:
    """A digest, equal if nights are comparable.

    Optional fields that are not stated are left out, so that stored digests stay valid when one is added.
    """
    model, training = scenario.model, scenario.training
    parts = {
        "model": model.model_dump(mode="json", exclude={"name", *_unstated_fields(model, ROUTING_GROUPS)}),
        "training": training.model_dump(mode="json", exclude=_unstated_fields(training, TRAINING_OPTIONS)),
        "device": scenario.cluster.device,
        "num_devices": scenario.cluster.num_devices,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _unstated_fields(part: StrictModel, names: Sequence[str]) -> set[str]:
    return {name for name in names if getattr(part, name) == type(part).model_fields[name].default}


def with_job_plan(described: StatedWorkload, plan: PlanFields) -> StatedWorkload:
    """The scenario with what the job states of its plan; a cold start takes the job's plan as a whole."""
    if not plan:
        return described
    return {**described, "plan": {**(described.get("plan") or {}), **plan}}


def read_environment(folder: Path) -> RunEnvironment:
    """Empty if there is no such file; InputError if there is one that cannot be used."""
    path = folder / FILE
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return RunEnvironment()
    except OSError as error:
        raise InputError(FILE, str(path), f"cannot be read: {error.strerror or error}") from None
    if len(content) > MAX_BYTES:
        raise InputError(FILE, str(path), f"must be at most {MAX_BYTES} bytes")
    try:
        # BaseLoader makes text of every value and never a Python object.
        return parse_environment(yaml.load(content, Loader=yaml.BaseLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
        where = f": line {mark.line + 1} is not" if mark else ""
        raise InputError(FILE, str(path), f"must be YAML{where}") from None


def parse_environment(content: object) -> RunEnvironment:
    """From the content of job.yaml, or from the same fields in another file."""
    if not isinstance(content, dict):
        raise InputError(FILE, content, f"must have {', '.join(ENVIRONMENT_PARTS)}")
    for name in content:
        if name not in ENVIRONMENT_PARTS:
            raise InputError(f"{FILE} {name}", content[name], f"allowed: {', '.join(ENVIRONMENT_PARTS)}")
    plan = _parse_texts("plan", content.get("plan"))
    nodes, data = content.get("nodes") or [], content.get("data")
    if not isinstance(nodes, list) or len(nodes) > MAX_ENTRIES:
        raise InputError(f"{FILE} nodes", nodes, "must be a list of names")
    return RunEnvironment(
        versions=_parse_texts("versions", content.get("versions")),
        plan={name: parse_plan_value(value) for name, value in plan.items()},
        nodes=[_parse_text("nodes", name) for name in nodes],
        data=_parse_text("data", data) if data else None,
    )


def _parse_texts(part: str, content: object) -> dict[str, str]:
    content = content or {}
    if not isinstance(content, dict) or len(content) > MAX_ENTRIES:
        raise InputError(f"{FILE} {part}", content, "must be names with a value each")
    return {str(name): _parse_text(f"{part}.{name}", value) for name, value in content.items()}


def _parse_text(field: str, value: object) -> str:
    if isinstance(value, dict | list) or len(str(value)) > 1000:
        raise InputError(f"{FILE} {field}", value, "must be a text of at most 1,000 characters")
    return "null" if value is None else str(value)


def parse_plan_value(text: str) -> PlanValue:
    """A plan has numbers and switches; BaseLoader leaves them as text."""
    return int(text) if text.isdecimal() else _WORDS.get(text.lower(), text)
