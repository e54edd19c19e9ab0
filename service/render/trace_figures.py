"""Plotly figures of traces and of their predicted counterparts: ranks, timeline, lateness, roofline and
collectives; and the data that is kept with an analysis to draw them.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from service.render.plotly import OTHERS, PALETTE, Figure, axis, frame, label, line, log_axis, names_axis
from service.render.terms import MEASURED
from service.render.text import bytes_of, seconds
from tools.hardware import Device
from tools.trace.collectives import AlignedCollectives, align, aligned_starts_ns
from tools.trace.folder import FolderProfile
from tools.trace.rank_profile import RankProfile
from tools.trace.report import describe_point

DRAWING = "drawing"
"""The key beside the parts of `asap diagnose --json`."""
MOST_RANKS = 64
MOST_POINTS = 200
MOST_COLUMNS = 120

Data = Mapping[str, Any]


def drawing_of(profile: FolderProfile) -> dict[str, Any]:
    """Strips of every rank, the longest operations of all ranks, and who came late to collectives."""
    ranks = profile.ranks[:MOST_RANKS]
    points = sorted(
        (point for one in profile.ranks for point in one.roofline), key=lambda point: -point.time_ns
    )
    return {
        "strips": [_strip(one) for one in ranks if one.timeline is not None],
        "points": [describe_point(point) for point in points[:MOST_POINTS]],
        "lateness": lateness([one for one in align(ranks) if one.is_synchronising]),
    }


def _strip(rank: RankProfile) -> dict[str, Any]:
    line = rank.timeline
    if line is None:
        raise ValueError("a rank without a timeline has no strip")
    return {
        "rank": rank.rank,
        "start_ms": line.start_ns / 1e6,
        "end_ms": line.end_ns / 1e6,
        "compute": line.compute,
        "exposed_communication": line.exposed_communication,
        "memory": line.memory,
    }


def lateness(aligned: Sequence[AlignedCollectives]) -> dict[str, Any] | None:
    """How long after the first each rank came, in the order of time; None where nothing was synchronised."""
    if not aligned:
        return None
    ranks = sorted({rank for one in aligned for rank in one.ranks})
    columns, order = [], []
    for one in aligned:
        starts_ns = aligned_starts_ns(one)
        late_us = (starts_ns - starts_ns.min(axis=0)) / 1000
        block = np.full((len(ranks), late_us.shape[1]), np.nan)
        block[[ranks.index(rank) for rank in one.ranks]] = late_us
        columns.append(block)
        order.append(starts_ns.min(axis=0))
    whole = np.concatenate(columns, axis=1)[:, np.argsort(np.concatenate(order), kind="stable")]
    return {"ranks": ranks, "late_us": [[_rounded(value) for value in row] for row in _narrowed(whole)]}


def _narrowed(late_us: np.ndarray) -> np.ndarray:
    """At most so many columns as can be told apart: the mean of those that share one."""
    parts = np.array_split(late_us, min(MOST_COLUMNS, late_us.shape[1]), axis=1)
    sums = np.stack([np.nansum(part, axis=1) for part in parts], axis=1)
    counts = np.stack([np.sum(~np.isnan(part), axis=1) for part in parts], axis=1)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _rounded(value: float) -> float | None:
    return None if np.isnan(value) else round(float(value), 2)


ROW_HEIGHT = 24
ROOM = 104
LEAST_HEIGHT = 200
KINDS = tuple(MEASURED.values())
COLOURS = ("--compute", "--tp_comm_exposed", "--dp_comm_exposed", "--rule")
STEPPED = [
    [place, colour]
    for index, colour in enumerate(COLOURS)
    for place in (index / len(COLOURS), (index + 1) / len(COLOURS))
]
LATE = [[0, "--card"], [1, "--tp_comm_exposed"]]


def terms_figure(ranks: Sequence[Data]) -> Figure:
    """The four terms of every rank, stacked."""
    shown = ranks[:MOST_RANKS]
    names = [f"rank {int(one['rank'])}" for one in shown]
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": names,
            "x": [one[key] / 1000 for one in shown],
            "marker": {"color": colour, "line": {"color": "--page", "width": 1}},
            "hovertemplate": f"%{{y}}: {name} %{{x:.4g}} ms<extra></extra>",
        }
        for (key, name), colour in zip(MEASURED.items(), COLOURS, strict=True)
    ]
    layout = frame("ms", "", ROOM + ROW_HEIGHT * len(names), barmode="stack", bargap=0.3)
    layout["yaxis"] = names_axis(names)
    return {"data": data, "layout": layout}


def timeline_figure(strips: Sequence[Data]) -> Figure:
    """One strip a rank; each stretch has the colour of what filled most of it."""
    shown = strips[:MOST_RANKS]
    zero = min(one["start_ms"] for one in shown)
    data = [_strip_ranks(row, one, zero) for row, one in enumerate(shown)]
    layout = frame("ms", "", ROOM - 30 + ROW_HEIGHT * len(shown))
    # Rows are numbers with labels: several heat maps on an axis of categories do not draw.
    names = [f"rank {int(one['rank'])}" for one in shown]
    layout["yaxis"] = axis("") | {
        "autorange": "reversed",
        "tickvals": list(range(len(shown))),
        "ticktext": names,
        "showgrid": False,
    }
    return {"data": data, "layout": layout}


def _strip_ranks(row: int, strip: Data, zero_ms: float) -> Figure:
    shares = [
        (*one, max(0, 1000 - sum(one)))
        for one in zip(strip["compute"], strip["exposed_communication"], strip["memory"], strict=True)
    ]
    width_ms = (strip["end_ms"] - strip["start_ms"]) / max(len(shares), 1)
    first_ms = strip["start_ms"] - zero_ms + width_ms / 2
    return {
        "type": "heatmap",
        "x": [round(first_ms + index * width_ms, 6) for index in range(len(shares))],
        "y": [row],
        "z": [[max(range(len(KINDS)), key=one.__getitem__) for one in shares]],
        "zmin": -0.5,
        "zmax": len(KINDS) - 0.5,
        "zsmooth": False,
        "colorscale": STEPPED,
        "showscale": False,
        "ygap": 4,
        "text": [
            [
                "<br>".join(f"{kind} {share / 10:.0f}%" for kind, share in zip(KINDS, one, strict=True))
                for one in shares
            ]
        ],
        "hovertemplate": f"rank {int(strip['rank'])}, %{{x:.4g}} ms<br>%{{text}}<extra></extra>",
    }


def lateness_figure(ranks: Sequence[int], late_us: Sequence[Sequence[float | None]]) -> Figure:
    """A row a rank, a column a stretch of collectives in order; dark where others wait for the rank."""
    names = [f"rank {rank}" for rank in ranks]
    longest_us = max((value for row in late_us for value in row if value is not None), default=0.0)
    unit, factor = ("ms", 1e-3) if longest_us >= 1000 else ("µs", 1.0)
    data = {
        "type": "heatmap",
        "y": names,
        "z": [[None if value is None else value * factor for value in row] for row in late_us],
        "zsmooth": False,
        "colorscale": LATE,
        "ygap": 2,
        "colorbar": {
            "title": {"text": f"{unit} late", "side": "top"},
            "outlinewidth": 0,
            "thickness": 10,
            "nticks": 4,
        },
        "hovertemplate": f"%{{y}} came %{{z:.3g}} {unit} after the first<extra></extra>",
    }
    layout = frame("collectives, in order", "", max(LEAST_HEIGHT, ROOM - 20 + ROW_HEIGHT * len(names)))
    layout["xaxis"] |= {"showticklabels": False, "showgrid": False}
    layout["yaxis"] = names_axis(names) | {"showgrid": False}
    return {"data": [data], "layout": layout}


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
        _points_collectives(
            group, [one for one in transfers if one.group == group], PALETTE[number % len(PALETTE)]
        )
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


def _points_collectives(group: str, transfers: Sequence[Transfer], colour: str) -> Figure:
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
