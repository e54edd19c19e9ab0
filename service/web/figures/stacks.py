"""Step time by what fills it, and memory by what holds it: one stacked bar a plan."""

from collections.abc import Callable, Mapping, Sequence

from service.report.terms import MEMORY, SHOWN_SHARE, STEP
from service.report.text import gib, seconds
from service.report.view import Planned
from service.web.figures.canvas import Figure, axis, frame, label, names_axis, upright

BAR_HEIGHT = 46
ROOM = 64


def step_time_figure(plans: Sequence[Planned]) -> Figure:
    names = [label(one.name) for one in plans]
    parts = [one.prediction["breakdown_s"] for one in plans]
    layout = _layout("seconds of one step", names)
    return {"data": [*_stack(names, parts, STEP, seconds), _intervals(names, plans)], "layout": layout}


def memory_figure(plans: Sequence[Planned], limit_gib: float, capacity_gib: float) -> Figure:
    names = [label(one.name) for one in plans]
    parts = [one.prediction["memory_gib"] for one in plans]
    layout = _layout("GiB on the fullest device", names)
    layout["shapes"] = [upright(limit_gib, "dash"), upright(capacity_gib, "solid")]
    highest = max([capacity_gib, *(one.prediction["peak_memory_gib"] for one in plans)])
    layout["xaxis"] |= {"range": [0, highest * 1.03]}
    return {"data": _stack(names, parts, MEMORY, gib), "layout": layout}


def _stack(
    names: list[str],
    parts: Sequence[Mapping[str, float]],
    terms: Mapping[str, str],
    told: Callable[[float], str],
) -> list[Figure]:
    totals = [sum(one.values()) or 1.0 for one in parts]
    seen = [
        key
        for key in terms
        if any(one[key] / whole >= SHOWN_SHARE for one, whole in zip(parts, totals, strict=True))
    ]
    return [
        {
            "type": "bar",
            "orientation": "h",
            "name": terms[key],
            "y": names,
            "x": [one[key] for one in parts],
            "text": [
                f"{told(one[key])}, {one[key] / whole:.0%}" for one, whole in zip(parts, totals, strict=True)
            ],
            "textposition": "none",
            "hovertemplate": "%{y}, " + terms[key] + ": %{text}<extra></extra>",
            "marker": {"color": f"--{key}", "line": {"color": "--page", "width": 1}},
        }
        for key in seen
    ]


def _intervals(names: list[str], plans: Sequence[Planned]) -> Figure:
    """The 80% interval at the end of each bar."""
    middle = [one.prediction["step_time_s"] for one in plans]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "80% interval",
        "y": names,
        "x": middle,
        "marker": {"color": "--ink", "size": 5},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [one.prediction["step_time_high_s"] - one.prediction["step_time_s"] for one in plans],
            "arrayminus": [
                one.prediction["step_time_s"] - one.prediction["step_time_low_s"] for one in plans
            ],
            "color": "--ink",
            "thickness": 1.2,
            "width": 4,
        },
        "text": [f"{seconds(one.prediction['step_time_s'])}, 80% interval {one.interval}" for one in plans],
        "hovertemplate": "%{y}: %{text}<extra></extra>",
    }


def _layout(title: str, names: list[str]) -> Figure:
    layout = frame(title, "", ROOM + BAR_HEIGHT * len(names), barmode="stack", bargap=0.35, showlegend=False)
    layout["xaxis"] = axis(title) | {"rangemode": "tozero"}
    layout["yaxis"] = names_axis(names)
    return layout
