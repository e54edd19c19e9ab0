"""The searched space: memory against step time, the front of both, today's plan and the proposed ones."""

from collections.abc import Sequence
from dataclasses import dataclass

from service.web.figures.canvas import Figure, frame, label, upright

MOST_SHARE = 0.98
FAR = 2.0


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
    limit_gib: float = 0.0


def space_figure(space: Space) -> Figure:
    data = [
        _dots("plans", space.plans, {"color": "--soft", "size": 4, "opacity": 0.5}),
        _front(space.front),
        _dots("brought by others", space.brought, {"color": "--dp_comm_exposed", "size": 9, "symbol": "x"}),
        _dots("today", space.today, {"color": "--ink", "size": 12, "symbol": "diamond"}),
        _proposals(space.proposals),
    ]
    layout = frame("peak memory, GiB", "step time, s", 440)
    layout["shapes"] = [upright(space.limit_gib, "dash")] if space.limit_gib else []
    layout["xaxis"] |= {"range": _memory_shown(space)}
    layout["yaxis"] |= {"range": _seconds_shown(space)}
    return {"data": [one for one in data if one["x"]], "layout": layout}


def _seconds_shown(space: Space) -> list[float]:
    """From the fastest plan up to what somebody runs or brought: the few slowest are of no interest."""
    times = sorted(dot.step_time_s for dot in (*space.plans, *space.proposals))
    known = [dot.step_time_s for dot in (*space.today, *space.brought, *space.proposals)]
    most = times[int(MOST_SHARE * (len(times) - 1))] if times else 1.0
    return _with_room(min([*times, *known], default=0.0), max([most, *known]))


def _memory_shown(space: Space) -> list[float]:
    """With the limit, unless that is so far off that it would flatten the plans."""
    dots = (*space.plans, *space.front, *space.proposals, *space.today, *space.brought)
    low, high = (
        min((dot.memory_gib for dot in dots), default=0.0),
        max((dot.memory_gib for dot in dots), default=1.0),
    )
    return _with_room(low, max(high, space.limit_gib) if space.limit_gib <= FAR * high else high)


def _with_room(low: float, high: float) -> list[float]:
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
    """The first drawn last, over the others."""
    dots = _dots(
        "proposals",
        proposals[::-1],
        {"color": "--accent", "size": 20, "line": {"color": "--page", "width": 1}},
    )
    ranks = [str(rank) for rank in range(len(proposals), 0, -1)]
    said = dots.pop("text")
    return dots | {
        "mode": "markers+text",
        "text": ranks,
        "textfont": {"color": "--on-accent", "size": 12},
        "customdata": said,
        "hovertemplate": "%{customdata}<br>%{y:.4g} s, %{x:.1f} GiB<extra>proposal %{text}</extra>",
    }
