"""Finds a device by name or alias in `kb_seed/hardware/` (one TOML file per device) and applies
`cluster.overrides`.

Nothing is read at import: a lookup reads the one file it needs, and the beginnings of all for an alias. A
broken file is a DataError, a bad override an InputError.
"""

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from typing import TypeVar

from pydantic import JsonValue, ValidationError

from kb_seed import folder
from tools.errors import DataError, InputError
from tools.hardware.device import (
    FLOPS_PER_TFLOPS,
    PEAK_KEY,
    Collectives,
    Device,
    DeviceHead,
    Figure,
    FigureError,
    Measure,
    peak_key,
)
from tools.names import nearest

HeadT = TypeVar("HeadT", bound=DeviceHead)
FIGURES = Device.figures()
FIGURE_BY_KEY = {figure.key: figure for figure in FIGURES}
FIELD = "cluster.overrides"
LARGEST_FACTOR = 1000
"""Wider than any two devices of one kind differ, narrower than a mistaken unit (GB for MB, s for ms)."""
SOURCE = "override: given by the caller"
NEAR = 0.5
"""Least similarity by difflib: "h100" still finds "h100-sxm-80gb"."""


@cache
def device_names() -> tuple[str, ...]:
    """The names of the catalogue in alphabetical order, aliases left out."""
    files = (entry.name for entry in folder("hardware").iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml")))


def get_device(name: str, overrides: Mapping[str, JsonValue] | None = None) -> Device:
    """The device called `name` (or so nicknamed), with the caller's figures in place of its own."""
    # Callers read their input from JSON: what should be a name may be anything.
    if not isinstance(name, str):
        raise InputError("cluster.device", name, f"must be a name; known: {', '.join(device_names())}")
    wanted = name.strip().lower().replace("_", "-").replace(" ", "-")
    found = wanted if wanted in device_names() else _names_by_alias().get(wanted)
    if found is None:
        names = {**{name: name for name in device_names()}, **_names_by_alias()}
        near = [names[key] for key in nearest(wanted, names, cutoff=NEAR, count=5)]
        # Several aliases may lead to one device: keep the order, drop the repetitions.
        question = f"did you mean {' or '.join(list(dict.fromkeys(near))[:3])}? " if near else ""
        raise InputError("cluster.device", name, f"{question}known: {', '.join(device_names())}")
    device = _load(found)
    return device if overrides is None else apply_overrides(device, overrides)


def find_vendor(name: str) -> str | None:
    """The maker of a device of the catalogue; None for any other name."""
    return _heads()[name].vendor if name in _heads() else None


def find_reported(name: str) -> str | None:
    """The device that drivers and traces call this; None if no file of the catalogue knows the name."""
    patterns = ((head.reported_as, head.name) for head in _heads().values() if head.reported_as)
    return next((device for pattern, device in patterns if re.search(pattern, name, re.IGNORECASE)), None)


@cache
def _names_by_alias() -> dict[str, str]:
    names: dict[str, str] = {}
    for head in _heads().values():
        for alias in head.aliases:
            if alias in device_names() or alias in names:
                raise DataError(f"kb_seed/hardware/{head.name}.toml: the alias {alias} names another device")
            names[alias] = head.name
    return names


@cache
def _heads() -> dict[str, DeviceHead]:
    """What all devices are called, from the beginnings of their files: parsing the rest takes 70 ms."""
    return {name: parse_device(name, _text(name).partition("\n[")[0], DeviceHead) for name in device_names()}


@cache
def _load(name: str) -> Device:
    return parse_device(name, _text(name), Device)


def _text(name: str) -> str:
    return folder("hardware").joinpath(f"{name}.toml").read_text(encoding="utf-8")


def parse_device(name: str, text: str, model: type[HeadT]) -> HeadT:
    """The device, or what it is called, from the text of the file `name`.toml."""
    place = f"kb_seed/hardware/{name}.toml"
    try:
        device = model.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{place}: not TOML: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise DataError(f"{place}: {where}: {first['msg']} (got {first['input']!r:.80})") from None
    if device.name != name:
        raise DataError(f"{place}: name is {device.name!r}, the file's is {name!r}")
    return device


def apply_overrides(device: Device, overrides: Mapping[str, JsonValue]) -> Device:
    """A copy of `device` with the given figures, each of them checked; peaks nested or as dotted keys."""
    if not isinstance(overrides, Mapping):
        raise InputError(FIELD, overrides, "must be an object of figures")
    flat = dict(overrides)
    if PEAK_KEY in flat:
        nested = flat.pop(PEAK_KEY)
        if not isinstance(nested, Mapping):
            rule = 'must be an object such as {"bf16": 989}, in TFLOP/s'
            raise InputError(f"{FIELD}.{PEAK_KEY}", nested, rule)
        flat |= {peak_key(str(precision)): peak for precision, peak in nested.items()}
    figures: dict[str, float] = {}
    peaks, sources = dict(device.peak_flops), dict(device.sources)
    for key, value in flat.items():
        precision = str(key).removeprefix(f"{PEAK_KEY}.")
        if figure := FIGURE_BY_KEY.get(key):
            # Zero dimensions have no multiples: the limits of the figure itself must do.
            usual = in_file_units(device, figure) if key != "torus_dimensions" else None
            figures[figure.field] = _checked(key, value, figure.measure, usual)
        elif precision == str(key):
            known = [*FIGURE_BY_KEY, PEAK_KEY]
            near = nearest(key, known, count=1)
            guess = f"did you mean {near[0]}? " if near else ""
            raise InputError(f"{FIELD}.{key}", value, f"{guess}a figure is one of {', '.join(known)}")
        elif precision not in peaks:
            raise InputError(f"{FIELD}.{key}", value, f"{device.name} has {', '.join(device.peak_flops)}")
        else:
            usual = peaks[precision] / FLOPS_PER_TFLOPS
            peaks[precision] = _checked(key, value, Measure("TFLOP/s", FLOPS_PER_TFLOPS), usual)
        sources[key] = SOURCE
    return device.model_copy(update={**figures, "peak_flops": peaks, "sources": sources})


def _checked(key: str, value: JsonValue, measure: Measure, usual: float | None) -> float:
    """The value in base units, if it is a sensible one beside the catalogue's `usual` figure."""
    try:
        number = measure.check(value)
    except FigureError as error:
        raise InputError(f"{FIELD}.{key}", value, error.rule) from None
    if usual is not None and not usual / LARGEST_FACTOR <= number <= usual * LARGEST_FACTOR:
        bounds = f"{usual / LARGEST_FACTOR:.4g} to {usual * LARGEST_FACTOR:.4g} {measure.unit}"
        rule = f"must lie from {bounds} (the catalogue has {usual:g})"
        raise InputError(f"{FIELD}.{key}", value, rule)
    return measure.to_base(number)


def in_file_units(device: Device, figure: Figure) -> float:
    """The figure as the data file (or the override) wrote it."""
    value: float = getattr(device, figure.field)
    # Twelve digits hide what the way to base units and back does to the last bits.
    return value if figure.measure.integral else float(f"{value / figure.measure.base_per_unit:.12g}")


def describe(device: Device) -> dict[str, JsonValue]:
    """The device in the shape of its data file: keys with units, as `cluster.overrides` takes them."""
    peaks: dict[str, JsonValue] = {
        name: float(f"{peak / FLOPS_PER_TFLOPS:.12g}") for name, peak in device.peak_flops.items()
    }
    is_usual = device.collectives == Collectives()
    return {
        "name": device.name,
        "title": device.title,
        "vendor": device.vendor,
        "generation": device.generation,
        "aliases": list(device.aliases),
        **{figure.key: in_file_units(device, figure) for figure in FIGURES},
        **({} if is_usual else {"collectives": device.collectives.model_dump()}),
        PEAK_KEY: peaks,
        "sources": dict(device.sources),
    }
