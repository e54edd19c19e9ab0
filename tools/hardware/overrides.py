"""`cluster.overrides`: figures of a device that the caller replaces, in the units of the data files.

A figure is replaced, never added: a precision that the hardware lacks stays absent.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tools.errors import InputError
from tools.hardware.device import Device
from tools.hardware.figures import FIGURE_BY_KEY, FLOPS_PER_TFLOPS, PEAK_KEY, in_file_units, peak_key, to_base
from tools.hardware.values import ValueFault, check_amount, check_figure

FIELD = "cluster.overrides"
# Wider than any two devices of one kind differ, narrower than a mistaken unit (GB for MB, s for ms).
LARGEST_FACTOR = 1000
SOURCE = "override: given by the caller"


def apply_overrides(device: Device, overrides: Mapping[str, Any]) -> Device:
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


def _flatten(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides with `peak_tflops` as dotted keys, whichever way they were written."""
    if not isinstance(overrides, Mapping):
        raise InputError(FIELD, overrides, "must be an object of figures")
    flat: dict[str, Any] = {}
    for key, value in overrides.items():
        if key == PEAK_KEY:
            flat |= _flatten_peaks(value)
        elif key in FIGURE_BY_KEY or str(key).startswith(f"{PEAK_KEY}."):
            flat[key] = value
        else:
            raise InputError(f"{FIELD}.{key}", value, _name_known_keys(str(key)))
    return flat


def _flatten_peaks(value: object) -> dict[str, Any]:
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
