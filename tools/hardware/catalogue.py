"""Finds a device by name or alias in `kb_seed/hardware/` (one TOML file per device) and applies
`cluster.overrides`.

Nothing is read at import: a lookup reads the one file it needs, or all of them for an alias. A broken
file is a DataError, a bad override an InputError.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from typing import Any

from pydantic import JsonValue

from kb_seed import folder
from tools.errors import DataError, InputError
from tools.hardware.device import (
    FIGURE_BY_KEY,
    FIGURES,
    FLOPS_PER_TFLOPS,
    PEAK_KEY,
    PRECISIONS,
    Collectives,
    Device,
    ValueFault,
    check_amount,
    check_figure,
    in_file_units,
    peak_key,
    to_base,
)

FIELD = "cluster.overrides"
# Wider than any two devices of one kind differ, narrower than a mistaken unit (GB for MB, s for ms).
LARGEST_FACTOR = 1000
SOURCE = "override: given by the caller"


def apply_overrides(device: Device, overrides: Mapping[str, JsonValue]) -> Device:
    """A copy of `device` with the given figures, each of them checked."""
    fields: dict[str, Any] = {}
    peaks = dict(device.peak_flops)
    sources = dict(device.sources)
    for key, value in _flatten(overrides).items():
        if key.startswith(f"{PEAK_KEY}."):
            peaks[key.removeprefix(f"{PEAK_KEY}.")] = _check_peak(device, key, value) * FLOPS_PER_TFLOPS
        else:
            fields[FIGURE_BY_KEY[key].field] = _check_figure(device, key, value)
        sources[key] = SOURCE
    return replace(device, **fields, peak_flops=peaks, sources=sources)


def _flatten(overrides: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Overrides with `peak_tflops` as dotted keys, whichever way they were written."""
    if not isinstance(overrides, Mapping):
        raise InputError(FIELD, overrides, "must be an object of figures")
    flat: dict[str, JsonValue] = {}
    for key, value in overrides.items():
        if key == PEAK_KEY:
            flat |= _flatten_peaks(value)
        elif key in FIGURE_BY_KEY or str(key).startswith(f"{PEAK_KEY}."):
            flat[key] = value
        else:
            raise InputError(f"{FIELD}.{key}", value, _name_known_keys(str(key)))
    return flat


def _flatten_peaks(value: object) -> dict[str, JsonValue]:
    if not isinstance(value, Mapping):
        raise InputError(f"{FIELD}.{PEAK_KEY}", value, 'must be an object such as {"bf16": 989}, in TFLOP/s')
    return {peak_key(str(precision)): peak for precision, peak in value.items()}


def _name_known_keys(key: str) -> str:
    from difflib import get_close_matches  # a mistake is rare: no start-up time spent on it

    known = [*FIGURE_BY_KEY, PEAK_KEY]
    near = get_close_matches(key, known, n=1)
    guess = f"did you mean {near[0]}? " if near else ""
    return f"{guess}a figure is one of {', '.join(known)}"


def _check_peak(device: Device, key: str, value: object) -> float:
    precision = key.removeprefix(f"{PEAK_KEY}.")
    if precision not in device.peak_flops:
        raise InputError(f"{FIELD}.{key}", value, f"{device.name} has {', '.join(device.peak_flops)}")
    try:
        peak_tflops = check_amount(value, "TFLOP/s")
        _refuse_absurd(peak_tflops, device.peak_flops[precision] / FLOPS_PER_TFLOPS, "TFLOP/s")
    except ValueFault as fault:
        raise InputError(f"{FIELD}.{key}", value, str(fault)) from None
    return peak_tflops


def _check_figure(device: Device, key: str, value: object) -> float:
    figure = FIGURE_BY_KEY[key]
    try:
        number = check_figure(figure, value)
        # Zero dimensions have no multiples: the limits of the figure itself must do.
        if figure.key != "torus_dimensions":
            _refuse_absurd(number, in_file_units(device, figure), figure.unit)
    except ValueFault as fault:
        raise InputError(f"{FIELD}.{key}", value, str(fault)) from None
    return to_base(figure, number)


def _refuse_absurd(value: float, usual: float, unit: str) -> None:
    low, high = usual / LARGEST_FACTOR, usual * LARGEST_FACTOR
    if not low <= value <= high:
        raise ValueFault(f"must lie from {low:.4g} to {high:.4g} {unit} (the catalogue has {usual:g})")


VENDORS = ("nvidia", "amd", "intel", "google", "aws", "cpu")
GENERATIONS = (
    *("volta", "ampere", "ada", "hopper", "blackwell", "blackwell-rtx"),
    *("cdna2", "cdna3", "cdna4", "gaudi2", "gaudi3"),
    *("tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu7x"),
    *("trainium1", "trainium2", "cpu"),
)
COLLECTIVES_KEY = "collectives"
"""An optional table; NCCL's rings if it is absent."""
_HEAD = ("name", "title", "vendor", "generation", "aliases")


def parse_device(name: str, text: str) -> Device:
    """The device that the file `name`.toml describes."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{_where(name)}: not TOML: {error}") from error
    _check_keys(name, data)
    _check_head(name, data)
    return Device(
        **{key: data[key] for key in _HEAD if key != "aliases"},
        aliases=tuple(data["aliases"]),
        **_read_figures(name, data),
        collectives=_read_collectives(name, data.get(COLLECTIVES_KEY, {})),
        peak_flops=_read_peaks(name, data[PEAK_KEY]),
        sources=_read_sources(name, data),
    )


def _where(name: str) -> str:
    return f"kb_seed/hardware/{name}.toml"


def _check_keys(name: str, data: dict[str, JsonValue]) -> None:
    wanted = {*_HEAD, *(figure.key for figure in FIGURES), PEAK_KEY, "sources"}
    unknown = data.keys() - wanted - {COLLECTIVES_KEY}
    for problem, keys in (("lacks", wanted - data.keys()), ("does not know", unknown)):
        if keys:
            raise DataError(f"{_where(name)}: {problem} {', '.join(sorted(keys))}")


def _check_head(name: str, data: dict[str, JsonValue]) -> None:
    allowed = {"name": (name,), "vendor": VENDORS, "generation": GENERATIONS}
    for key, values in allowed.items():
        if data[key] not in values:
            raise DataError(f"{_where(name)}: {key} is {data[key]!r}, must be one of {', '.join(values)}")
    if not isinstance(data["title"], str) or not data["title"]:
        raise DataError(f"{_where(name)}: title must be a text")
    aliases = data["aliases"]
    if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
        raise DataError(f"{_where(name)}: aliases must be a list of names")


def _read_figures(name: str, data: Mapping[str, JsonValue]) -> dict[str, Any]:
    read = {}
    for figure in FIGURES:
        try:
            read[figure.field] = to_base(figure, check_figure(figure, data[figure.key]))
        except ValueFault as fault:
            raise DataError(f"{_where(name)}: {figure.key} is {data[figure.key]!r}, {fault}") from None
    return read


def _read_collectives(name: str, table: object) -> Collectives:
    known = {field.name for field in fields(Collectives)}
    if not isinstance(table, dict) or table.keys() - known:
        raise DataError(f"{_where(name)}: [{COLLECTIVES_KEY}] must be a table of {', '.join(sorted(known))}")
    read = Collectives(**table)
    try:
        check_amount(read.reduce_scatter_passes, "passes")
    except ValueFault as fault:
        raise DataError(f"{_where(name)}: {COLLECTIVES_KEY}.reduce_scatter_passes {fault}") from None
    if not isinstance(read.is_flat, bool):
        raise DataError(f"{_where(name)}: {COLLECTIVES_KEY}.is_flat must be true or false")
    return read


def _read_peaks(name: str, table: object) -> dict[str, float]:
    if not isinstance(table, dict) or not table:
        raise DataError(f"{_where(name)}: [{PEAK_KEY}] must give a figure for each precision")
    for precision, value in table.items():
        if precision not in PRECISIONS:
            raise DataError(f"{_where(name)}: {peak_key(precision)} is none of {', '.join(PRECISIONS)}")
        try:
            check_amount(value, "TFLOP/s")
        except ValueFault as fault:
            raise DataError(f"{_where(name)}: {peak_key(precision)} is {value!r}, {fault}") from None
    return {key: table[key] * FLOPS_PER_TFLOPS for key in PRECISIONS if key in table}


def _read_sources(name: str, data: dict[str, JsonValue]) -> dict[str, str]:
    """One source for each figure; `peak_tflops` speaks for the peaks that have none of their own."""
    stated, peaks = data["sources"], data[PEAK_KEY]
    if not isinstance(stated, dict) or not isinstance(peaks, dict):
        raise DataError(f"{_where(name)}: [sources] must be a table")
    keys = [*(figure.key for figure in FIGURES), *(peak_key(precision) for precision in peaks)]
    keys += [COLLECTIVES_KEY] if COLLECTIVES_KEY in data else []
    if unknown := sorted(stated.keys() - {*keys, PEAK_KEY}):
        raise DataError(f"{_where(name)}: sources names no figure with {', '.join(unknown)}")
    return {key: _get_source(name, stated, key) for key in keys}


def _get_source(name: str, stated: dict[str, JsonValue], key: str) -> str:
    source = stated.get(key, stated.get(PEAK_KEY) if key.startswith(PEAK_KEY) else None)
    if not isinstance(source, str) or not source.strip():
        raise DataError(f"{_where(name)}: {key} has no source")
    return source


_FOLDER = "hardware"
_SUFFIX = ".toml"
_CUTOFF = 0.5  # of difflib's similarity: "h100" still finds "h100-sxm-80gb"


@cache
def device_names() -> tuple[str, ...]:
    """The names of the catalogue in alphabetical order, aliases left out."""
    files = (entry.name for entry in folder(_FOLDER).iterdir())
    return tuple(sorted(name.removesuffix(_SUFFIX) for name in files if name.endswith(_SUFFIX)))


def find_vendor(name: str) -> str | None:
    """The maker of a device of the catalogue; None for any other name."""
    return _vendors().get(name)


@cache
def _vendors() -> dict[str, str]:
    """By the one line of each file: parsing all figures would add 70 ms to every `asap optimize`."""
    vendors = {}
    for name in device_names():
        text = folder(_FOLDER).joinpath(name + _SUFFIX).read_text(encoding="utf-8")
        line = next(line for line in text.splitlines() if line.startswith("vendor"))
        vendors[name] = line.partition("=")[2].strip(' "')
    return vendors


def get_device(name: str, overrides: Mapping[str, JsonValue] | None = None) -> Device:
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
