"""What the job itself says of a night: `job.yaml` beside its traces or metrics, written by its launcher.

    versions: {torch: 2.13.0, nccl: 2.28.3, image: train@sha256:5f1c}
    nodes: [n1, n2]
    data: corpus-2026-11
    plan: {tp: 4, pp: 2}

JSON is YAML, so `json.dump` writes it too. Every part may be left out. `plan` holds only what differs from
the workload's; `nodes` are in the order of the ranks. Values are read as text: 2.10 is a version, not 2.1.
"""

from pathlib import Path
from typing import Any

import yaml

from tools.errors import InputError
from tools.nightly.night import Surroundings

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
