"""Predicted against measured step time, on logarithmic axes: on the line the two are equal."""

from collections.abc import Sequence
from dataclasses import dataclass

from service.report.text import seconds
from service.web.figures.canvas import Figure, frame, label, line, log_axis

OWN = "trials here"
OFF = 1.1
"""The dashed lines: so many times too long or too short."""


@dataclass(frozen=True)
class Pair:
    measured_s: float
    predicted_s: float
    group: str
    says: str = ""


COLOURS = {
    "dense": "--compute",
    "mixture of experts": "--tp_comm_exposed",
    "very small models": "--edge",
    OWN: "--ink",
}


SMALL = {"size": 7, "opacity": 0.6}
LARGE = {"size": 12, "symbol": "diamond", "line": {"color": "--page", "width": 1}}


def accuracy_figure(pairs: Sequence[Pair]) -> Figure:
    groups = list(dict.fromkeys(one.group for one in pairs))
    data = [_points(group, [one for one in pairs if one.group == group]) for group in groups]
    both = [value for one in pairs for value in (one.measured_s, one.predicted_s)]
    low, high = min(both) / 1.5, max(both) * 1.5
    lines = [line([low, high], [low, high], "equal", "solid", "--ink")]
    for factor, name in ((OFF, "10% too long"), (1 / OFF, "10% too short")):
        lines.append(line([low, high], [low * factor, high * factor], name) | {"showlegend": False})
    layout = frame("measured, s", "predicted, s", 480)
    layout["xaxis"], layout["yaxis"] = log_axis("measured, s", both), log_axis("predicted, s", both)
    return {"data": [*lines, *data], "layout": layout}


def _points(group: str, pairs: Sequence[Pair]) -> Figure:
    said = [
        f"{label(one.says)}{'<br>' if one.says else ''}measured {seconds(one.measured_s)}, "
        f"predicted {seconds(one.predicted_s)} ({one.predicted_s / one.measured_s - 1:+.1%})"
        for one in pairs
    ]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": label(group),
        "x": [one.measured_s for one in pairs],
        "y": [one.predicted_s for one in pairs],
        "text": said,
        "hovertemplate": "%{text}<extra>%{fullData.name}</extra>",
        "marker": {"color": COLOURS.get(group, "--accent"), **(LARGE if group == OWN else SMALL)},
    }
