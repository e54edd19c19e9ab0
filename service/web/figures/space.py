"""The searched space: memory against step time, the front of both, today's plan and the proposed ones."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from service.web.figures.canvas import Figure, frame, label, upright


@dataclass(frozen=True)
class Dot:
    memory_gib: float
    step_time_s: float
    says: str


@dataclass(frozen=True)
class Space:
    """All that the picture shows; every list may be empty."""

    plans: Sequence[Dot]
    front: Sequence[Dot]
    """Fastest first."""
    proposals: Sequence[Dot] = ()
    today: Sequence[Dot] = ()
    brought: Sequence[Dot] = ()
    """Plans of a playbook, a language model or an engineer."""
    limit_gib: float = field(default=0.0)


def space_figure(space: Space) -> Figure:
    data = [
        _dots("plans", space.plans, {"color": "--edge", "size": 4, "opacity": 0.45}),
        _front(space.front),
        _dots("brought by others", space.brought, {"color": "--dp_comm_exposed", "size": 9, "symbol": "x"}),
        _dots("today", space.today, {"color": "--ink", "size": 12, "symbol": "diamond"}),
        _proposals(space.proposals),
    ]
    layout = frame("peak memory, GiB", "step time, s", 440)
    layout["shapes"] = [upright(space.limit_gib, "dash")] if space.limit_gib else []
    layout["yaxis"] |= {"range": _seconds_shown(space)}
    return {"data": [one for one in data if one["x"]], "layout": layout}


def _seconds_shown(space: Space) -> list[float]:
    """From the fastest plan up to what somebody runs or brought: the front's far end is of no interest."""
    times = [dot.step_time_s for dot in (*space.plans, *space.front, *space.proposals)]
    known = [dot.step_time_s for dot in (*space.today, *space.brought, *space.proposals, *space.plans)]
    low, high = min(times, default=0.0), max(known, default=1.0)
    room = 0.06 * (high - low) or 0.1 * high
    return [max(0.0, low - room), high + room]


def _dots(name: str, dots: Sequence[Dot], marker: Figure) -> Figure:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [round(dot.memory_gib, 3) for dot in dots],
        "y": [round(dot.step_time_s, 5) for dot in dots],
        "text": [label(dot.says) for dot in dots],
        "hovertemplate": "%{text}<br>%{y:.4g} s, %{x:.1f} GiB<extra>" + name + "</extra>",
        "marker": marker,
    }


def _front(front: Sequence[Dot]) -> Figure:
    """Steps: between two of its plans one has the memory of the smaller and the time of the slower."""
    dots = _dots("front", front, {"color": "--accent", "size": 5})
    return dots | {"mode": "lines+markers", "line": {"color": "--accent", "width": 1.5, "shape": "vh"}}


def _proposals(proposals: Sequence[Dot]) -> Figure:
    dots = _dots("proposals", proposals, {"color": "--accent", "size": 20})
    ranks = [str(rank) for rank in range(1, len(proposals) + 1)]
    said = dots.pop("text")
    return dots | {
        "mode": "markers+text",
        "text": ranks,
        "textfont": {"color": "--on-accent", "size": 12},
        "customdata": said,
        "hovertemplate": "%{customdata}<br>%{y:.4g} s, %{x:.1f} GiB<extra>proposal %{text}</extra>",
    }
