"""Finds a device by name or alias in `kb_seed/hardware/`, one TOML file a device.

Nothing is read at import: the first look-up reads the one file it needs, or all of them when the name
is an alias.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from kb_seed import folder
from tools.errors import DataError, InputError
from tools.hardware.device import Device
from tools.hardware.overrides import apply_overrides
from tools.hardware.parse import parse_device

_FOLDER = "hardware"
_SUFFIX = ".toml"
_CUTOFF = 0.5  # of difflib's similarity: "h100" still finds "h100-sxm-80gb"


@cache
def device_names() -> tuple[str, ...]:
    """The names of the catalogue in alphabetical order, aliases left out."""
    files = (entry.name for entry in folder(_FOLDER).iterdir())
    return tuple(sorted(name.removesuffix(_SUFFIX) for name in files if name.endswith(_SUFFIX)))


def get_device(name: str, overrides: Mapping[str, Any] | None = None) -> Device:
    """The device called `name` (or so nicknamed), with the caller's figures in place of its own."""
    device = _load(_resolve(name))
    return device if overrides is None else apply_overrides(device, overrides)


@cache
def _load(name: str) -> Device:
    return parse_device(name, folder(_FOLDER).joinpath(name + _SUFFIX).read_text(encoding="utf-8"))


@cache
def _names_by_alias() -> dict[str, str]:
    names: dict[str, str] = {}
    for name in device_names():
        for alias in _load(name).aliases:
            if alias in device_names() or alias in names:
                raise DataError(f"kb_seed/hardware/{name}.toml: the alias {alias} names another device")
            names[alias] = name
    return names


def _resolve(name: str) -> str:
    # Callers read their input from JSON: what should be a name may be anything.
    if not isinstance(name, str):
        raise InputError("cluster.device", name, f"must be a name; known: {', '.join(device_names())}")
    wanted = name.strip().lower().replace("_", "-").replace(" ", "-")
    if wanted in device_names():
        return wanted
    if wanted in _names_by_alias():
        return _names_by_alias()[wanted]
    raise InputError("cluster.device", name, _suggest(wanted))


def _suggest(wanted: str) -> str:
    """The nearest names, by name or by alias, and then all of them."""
    from difflib import get_close_matches  # a mistake is rare: no start-up time spent on it

    names = {**{name: name for name in device_names()}, **_names_by_alias()}
    near = get_close_matches(wanted, names, n=5, cutoff=_CUTOFF)
    # Several aliases may lead to one device: keep the order, drop the repetitions.
    nearest = list(dict.fromkeys(names[key] for key in near))[:3]
    question = f"did you mean {' or '.join(nearest)}? " if nearest else ""
    return f"{question}known: {', '.join(device_names())}"
