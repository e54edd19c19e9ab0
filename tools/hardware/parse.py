"""From the text of one data file to a `Device`; whatever is wrong with the file is a DataError."""

import tomllib
from dataclasses import fields
from typing import Any

from tools.errors import DataError
from tools.hardware.device import Collectives, Device
from tools.hardware.figures import FIGURES, FLOPS_PER_TFLOPS, PEAK_KEY, PRECISIONS, peak_key, to_base
from tools.hardware.values import ValueFault, check_amount, check_figure

VENDORS = ("nvidia", "amd", "google", "aws", "cpu")
GENERATIONS = (
    *("volta", "ampere", "hopper", "blackwell"),
    *("cdna2", "cdna3", "cdna4"),
    *("tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu7x"),
    *("trainium1", "trainium2", "cpu"),
)
COLLECTIVES_KEY = "collectives"
"""An optional table; NCCL's rings where it is absent."""
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


def _check_keys(name: str, data: dict[str, Any]) -> None:
    wanted = {*_HEAD, *(figure.key for figure in FIGURES), PEAK_KEY, "sources"}
    unknown = data.keys() - wanted - {COLLECTIVES_KEY}
    for problem, keys in (("lacks", wanted - data.keys()), ("does not know", unknown)):
        if keys:
            raise DataError(f"{_where(name)}: {problem} {', '.join(sorted(keys))}")


def _check_head(name: str, data: dict[str, Any]) -> None:
    allowed = {"name": (name,), "vendor": VENDORS, "generation": GENERATIONS}
    for key, values in allowed.items():
        if data[key] not in values:
            raise DataError(f"{_where(name)}: {key} is {data[key]!r}, must be one of {', '.join(values)}")
    if not isinstance(data["title"], str) or not data["title"]:
        raise DataError(f"{_where(name)}: title must be a text")
    aliases = data["aliases"]
    if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
        raise DataError(f"{_where(name)}: aliases must be a list of names")


def _read_figures(name: str, data: dict[str, Any]) -> dict[str, Any]:
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


def _read_sources(name: str, data: dict[str, Any]) -> dict[str, str]:
    """One source for each figure; `peak_tflops` speaks for the peaks that have none of their own."""
    stated = data["sources"]
    if not isinstance(stated, dict):
        raise DataError(f"{_where(name)}: [sources] must be a table")
    keys = [*(figure.key for figure in FIGURES), *(peak_key(precision) for precision in data[PEAK_KEY])]
    keys += [COLLECTIVES_KEY] if COLLECTIVES_KEY in data else []
    if unknown := sorted(stated.keys() - {*keys, PEAK_KEY}):
        raise DataError(f"{_where(name)}: sources names no figure with {', '.join(unknown)}")
    return {key: _get_source(name, stated, key) for key in keys}


def _get_source(name: str, stated: dict[str, Any], key: str) -> str:
    source = stated.get(key, stated.get(PEAK_KEY) if key.startswith(PEAK_KEY) else None)
    if not isinstance(source, str) or not source.strip():
        raise DataError(f"{_where(name)}: {key} has no source")
    return source
