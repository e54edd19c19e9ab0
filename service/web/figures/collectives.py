"""Collectives by size: the bandwidth that each reaches, beside the links of the device."""

from collections.abc import Sequence
from dataclasses import dataclass

from service.web.figures.canvas import PALETTE, Figure, frame, label, line, log_axis
from service.web.views.units import bytes_of

GIGA = 1e9


@dataclass(frozen=True)
class Transfer:
    group: str
    """What has one colour: the kind of a measured collective, the degree of a predicted one."""
    message_bytes: float
    bus_bytes_per_s: float
    says: str
    colour: str = ""
    """Where the group has one of its own."""


def collectives_figure(transfers: Sequence[Transfer], links: Sequence[tuple[str, float]]) -> Figure:
    """`links` by name, in bytes a second."""
    groups = sorted({one.group for one in transfers})
    data = [
        _points(group, [one for one in transfers if one.group == group], PALETTE[number % len(PALETTE)])
        for number, group in enumerate(groups)
    ]
    sizes = [one.message_bytes for one in transfers]
    span = [min(sizes) / 5, max(sizes) * 5] if sizes else [1.0, 1e9]
    data += [
        line(span, [rate / GIGA] * 2, f"{name}, {rate / GIGA:.3g} GB/s", dash)
        for (name, rate), dash in zip(links, ("solid", "dash", "dot"), strict=False)
    ]
    layout = frame("message size", "bus bandwidth, GB/s", 400, showlegend=True)
    layout["xaxis"] = log_axis("message size", sizes, bytes_of)
    layout["yaxis"] = log_axis("bus bandwidth, GB/s", [y for one in data for y in one["y"]])
    return {"data": data, "layout": layout}


def _points(group: str, transfers: Sequence[Transfer], colour: str) -> Figure:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": label(group),
        "x": [one.message_bytes for one in transfers],
        "y": [one.bus_bytes_per_s / GIGA for one in transfers],
        "text": [label(one.says) for one in transfers],
        "hovertemplate": "%{text}<br>%{x:.3s}B at %{y:.3g} GB/s<extra></extra>",
        "marker": {
            "color": transfers[0].colour or colour,
            "size": 12,
            "line": {"color": "--page", "width": 1},
        },
    }
