"""Collectives by size: the bandwidth that each reaches, beside the links of the device."""

from collections.abc import Sequence
from dataclasses import dataclass

from service.web.figures.canvas import Figure, frame, label, line, log_axis

GIGA = 1e9
COLOURS = (
    "--tp_comm_exposed",
    "--dp_comm_exposed",
    "--accent",
    "--ep_comm_exposed",
    "--optimizer",
    "--runtime",
)


@dataclass(frozen=True)
class Transfer:
    group: str
    """What has one colour: the kind of a measured collective, the degree of a predicted one."""
    message_bytes: float
    bus_bytes_per_s: float
    says: str


def collectives_figure(transfers: Sequence[Transfer], links: Sequence[tuple[str, float]]) -> Figure:
    """`links` by name, in bytes a second."""
    groups = sorted({one.group for one in transfers})
    data = [
        _points(group, [one for one in transfers if one.group == group], COLOURS[number % len(COLOURS)])
        for number, group in enumerate(groups)
    ]
    sizes = [one.message_bytes for one in transfers]
    span = [min(sizes) / 5, max(sizes) * 5] if sizes else [1.0, 1e9]
    data += [
        line(span, [rate / GIGA] * 2, f"{name}, {rate / GIGA:.3g} GB/s", dash)
        for (name, rate), dash in zip(links, ("solid", "dash", "dot"), strict=False)
    ]
    layout = frame("message size, bytes", "bus bandwidth, GB/s", 400)
    layout["xaxis"] = log_axis("message size, bytes")
    layout["yaxis"] = log_axis("bus bandwidth, GB/s")
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
        "marker": {"color": colour, "size": 12, "line": {"color": "--page", "width": 1}},
    }
