"""One night of one workload as a record, which nights are comparable, and what the job states in `job.yaml`.

The plan is not part of the comparison key: a change of plan that made the step slower must be found.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from tools.errors import DataError, InputError
from tools.scenario import Scenario
from tools.scenario.spec import TRAINING_OPTIONS, Record

FORMAT = 1


class SlowRank(msgspec.Struct, frozen=True, kw_only=True):
    """A rank whose own work took longer than that of the middle rank."""

    rank: int
    node: str | None = None
    ratio: float
    """Its own work over the middle rank's, minus 1."""


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What may explain a change. Empty or None: not recorded, which is never taken for a change."""

    versions: dict[str, str] = {}
    plan: dict[str, Any] = {}
    nodes: list[str] = []
    data: str | None = None


class Night(msgspec.Struct, frozen=True, kw_only=True):
    """All times in seconds, all sizes in bytes, all ratios plain."""

    format: int = FORMAT
    key: str
    """Which profile or file was measured: the same one again is the same night."""
    at: float
    """Seconds since 1970."""
    contract: str = ""
    """Nights are comparable only where it is equal: model, training and number of devices, as a digest."""
    num_devices: int = 1
    num_steps: int = 0
    step_time_s: float
    step_error_ratio: float | None = None
    """Standard error of `step_time_s` by the scatter of that night's own steps, over it."""
    mfu: float | None = None
    terms_s: dict[str, float] = {}
    """Parts of the step that add up to it, where a profile tells them."""
    rank_spread_ratio: float | None = None
    """How much longer the slowest rank's own work takes than the middle one's, over the step."""
    peak_memory_bytes: float | None = None
    slow_ranks: list[SlowRank] = []
    surroundings: Surroundings = Surroundings()
    source: str = ""
    notes: list[str] = []


def night_to_data(night: Night) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.to_builtins(night)
    return data


def night_from_data(data: dict[str, Any]) -> Night:
    """A kept record that is not one is ours to explain, not the user's."""
    try:
        return msgspec.convert(data, Night)
    except msgspec.ValidationError as error:
        raise DataError(f"a kept night cannot be read: {error}; remove it from the table nights") from None


ROUTING_GROUPS = ("n_group", "topk_group")


def contract_of(scenario: Scenario) -> str:
    """A digest, equal where nights are comparable.

    Optional fields that are not stated are left out, so that stored digests stay valid when one is added.
    """
    model, training = scenario.model, scenario.training
    parts = {
        "model": model.model_dump(mode="json", exclude={"name", *_unstated(model, ROUTING_GROUPS)}),
        "training": training.model_dump(mode="json", exclude=_unstated(training, TRAINING_OPTIONS)),
        "device": scenario.cluster.device,
        "num_devices": scenario.cluster.num_devices,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _unstated(part: Record, names: Sequence[str]) -> set[str]:
    return {name for name in names if getattr(part, name) == type(part).model_fields[name].default}


def as_run(described: Mapping[str, Any], plan: Mapping[str, Any]) -> dict[str, Any]:
    """The workload with what the job says of its plan; a cold start takes the job's plan as a whole."""
    if not plan:
        return dict(described)
    return {**described, "plan": {**(described.get("plan") or {}), **plan}}


FILE = "job.yaml"
MOST_BYTES = 1 << 20
MOST_ENTRIES = 10_000
PARTS = ("versions", "nodes", "data", "plan")
_WORDS: dict[str, Any] = {"true": True, "false": False, "null": None, "": None}


def read_surroundings(folder: Path) -> Surroundings:
    """Empty where there is no such file; InputError where there is one that cannot be used."""
    path = folder / FILE
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        return Surroundings()
    except OSError as error:
        raise InputError(FILE, str(path), f"cannot be read: {error.strerror or error}") from None
    if len(content) > MOST_BYTES:
        raise InputError(FILE, str(path), f"must be at most {MOST_BYTES} bytes")
    return parse_surroundings(_load(content, path))


def _load(content: bytes, path: Path) -> object:
    try:
        # BaseLoader makes text of every value and never an object of Python's.
        return yaml.load(content, Loader=yaml.BaseLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(FILE, str(path), f"must be YAML: {reason}") from None


def parse_surroundings(given: object) -> Surroundings:
    """From the content of such a file, or of a part of another one that says the same."""
    if not isinstance(given, dict):
        raise InputError(FILE, given, f"must have {', '.join(PARTS)}")
    for name in given:
        if name not in PARTS:
            raise InputError(f"{FILE} {name}", given[name], f"allowed: {', '.join(PARTS)}")
    plan = _texts(given, "plan")
    return Surroundings(
        versions=_texts(given, "versions"),
        plan={name: _typed(value) for name, value in plan.items()},
        nodes=_list(given),
        data=_text("data", given["data"]) if given.get("data") else None,
    )


def _texts(given: dict[str, object], part: str) -> dict[str, str]:
    found = given.get(part) or {}
    if not isinstance(found, dict) or len(found) > MOST_ENTRIES:
        raise InputError(f"{FILE} {part}", found, "must be names with a value each")
    return {str(name): _text(f"{part}.{name}", value) for name, value in found.items()}


def _list(given: dict[str, object]) -> list[str]:
    found = given.get("nodes") or []
    if not isinstance(found, list) or len(found) > MOST_ENTRIES:
        raise InputError(f"{FILE} nodes", found, "must be a list of names")
    return [_text("nodes", name) for name in found]


def _text(field: str, value: object) -> str:
    if isinstance(value, dict | list) or len(str(value)) > 1000:
        raise InputError(f"{FILE} {field}", value, "must be a text of at most 1,000 characters")
    return "null" if value is None else str(value)


def _typed(text: str) -> object:
    """A plan has numbers and switches."""
    lower = text.lower()
    return int(text) if text.isdecimal() else _WORDS.get(lower, text)
