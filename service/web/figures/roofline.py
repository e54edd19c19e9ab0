"""Operations under the roof of their device: what is bound by memory, and how far below the roof each runs.

The roof: Williams, Waterman, Patterson 2009, min(peak, intensity × memory bandwidth).
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from service.report.text import seconds
from service.web.figures.canvas import OTHERS, PALETTE, Figure, frame, label, line, log_axis
from tools.hardware import Device

TERA = 1e12


@dataclass(frozen=True)
class Point:
    name: str
    intensity: float
    """FLOPs per byte."""
    flops_per_s: float
    seconds: float
    says: str


def roofline_figure(points: Sequence[Point], device: Device | None, precisions: Sequence[str]) -> Figure:
    """`device` is None where traces do not say what they were made on: then there is no roof."""
    roofs = [
        _roof(device, one, points) for one in precisions if device is not None and one in device.peak_flops
    ]
    data = [*roofs, *_operations(points)]
    layout = frame("FLOPs per byte moved", "TFLOP/s", 440)
    layout["xaxis"] = log_axis("FLOPs per byte moved", [x for one in data for x in one["x"]])
    layout["yaxis"] = log_axis("TFLOP/s", [y for one in data for y in one["y"]])
    return {"data": data, "layout": layout}


def _operations(points: Sequence[Point]) -> list[Figure]:
    """The operations that take longest by name, each in a colour; the rest together."""
    total_s = defaultdict[str, float](float)
    for one in points:
        total_s[one.name] += one.seconds
    named = sorted(total_s, key=lambda name: -total_s[name])[: len(PALETTE)]
    longest = max((one.seconds for one in points), default=1.0) or 1.0
    groups = {name: [one for one in points if one.name == name] for name in named}
    rest = [one for one in points if one.name not in groups]
    found = [
        _points(name, groups[name], longest, colour) for name, colour in zip(named, PALETTE, strict=False)
    ]
    return [*found, *([_points("others", rest, longest, OTHERS)] if rest else [])]


def _points(name: str, points: Sequence[Point], longest_s: float, colour: str) -> Figure:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": label(name),
        "x": [one.intensity for one in points],
        "y": [one.flops_per_s / TERA for one in points],
        "text": [f"{label(one.name)}<br>{label(one.says)}<br>{seconds(one.seconds)}" for one in points],
        "hovertemplate": "%{text}<br>%{y:.3g} TFLOP/s at %{x:.3g} FLOP/byte<extra></extra>",
        "marker": {
            "size": [8 + 22 * (one.seconds / longest_s) ** 0.5 for one in points],
            "color": colour,
            "opacity": 0.8,
            "line": {"color": "--page", "width": 1},
        },
    }


def _roof(device: Device, precision: str, points: Sequence[Point]) -> Figure:
    peak, bandwidth = device.peak_flops[precision], device.memory_bandwidth_bytes_per_s
    ridge = peak / bandwidth
    left = min([ridge / 30, *(one.intensity / 2 for one in points)])
    right = max([ridge * 10, *(one.intensity * 2 for one in points)])
    x, y = [left, ridge, right], [bandwidth * left / TERA, peak / TERA, peak / TERA]
    return line(x, y, f"{device.name}, {precision}", "solid")
