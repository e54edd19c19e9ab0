"""Plotly figures of traces and of their predicted counterparts: ranks, timeline, lateness, roofline,
collectives, waiting and memory; `asap diagnose --html` and the web pages draw the same ones.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from service.render.plotly import (
    PALETTE,
    Figure,
    PlotlyJson,
    axis,
    frame,
    label,
    line,
    log_axis,
    names_axis,
)
from service.render.text import MEASURED, bytes_of, seconds
from tools.hardware import Device
from tools.trace.alignment import CollectiveSummary, Lateness
from tools.trace.rank_profile import RankReport
from tools.trace.report import MAX_DRAWN_RANKS, Strip
from tools.trace.roofline import RoofReport

ROW_HEIGHT = 24
MARGIN_HEIGHT = 104
MIN_HEIGHT = 200
MAX_BARS = 12
KINDS = tuple(MEASURED.values())
COLOURS = ("--compute", "--tp_comm_exposed", "--memory_bound_ops", "--rule")
STEPPED = [
    [place, colour]
    for index, colour in enumerate(COLOURS)
    for place in (index / len(COLOURS), (index + 1) / len(COLOURS))
]
SHAPES = ("circle", "square", "diamond", "triangle-up", "triangle-down", "pentagon", "star")
LATE = [[0, "--card"], [1, "--tp_comm_exposed"]]
ONE_CLOCK_SPANS = 2
"""Ranks whose traces start further apart than this many traces last have clocks of their own."""


def terms_figure(ranks: Sequence[RankReport]) -> Figure:
    """The four terms of every rank, stacked."""
    shown = ranks[:MAX_DRAWN_RANKS]
    names = [f"rank {rank.rank}" for rank in shown]
    bars = {name: [getattr(rank, key) / 1000 for rank in shown] for key, name in MEASURED.items()}
    return _stacked_bars(names, bars, COLOURS, "ms")


def _stacked_bars(rows: list[str], bars: dict[str, list[float]], colours: Sequence[str], unit: str) -> Figure:
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": rows,
            "x": lengths,
            "marker": {"color": colour, "line": {"color": "--page", "width": 1}},
            "hovertemplate": f"%{{y}}: {name} %{{x:.4g}} ms<extra></extra>",
        }
        for (name, lengths), colour in zip(bars.items(), colours, strict=True)
    ]
    layout = frame(unit, "", MARGIN_HEIGHT + ROW_HEIGHT * len(rows), barmode="stack", bargap=0.3)
    layout["yaxis"] = names_axis(rows)
    return {"data": data, "layout": layout}


def timeline_figure(strips: Sequence[Strip]) -> Figure:
    """One strip per rank; each stretch has the colour of what filled most of it."""
    starts_ms = [strip.start_ms for strip in strips]
    longest_ms = max(strip.end_ms - strip.start_ms for strip in strips)
    has_one_clock = max(starts_ms) - min(starts_ms) < ONE_CLOCK_SPANS * longest_ms
    data = [
        _heat_strip(row, strip, min(starts_ms) if has_one_clock else strip.start_ms)
        for row, strip in enumerate(strips)
    ]
    title = "ms" if has_one_clock else "ms since each rank's first event"
    layout = frame(title, "", MARGIN_HEIGHT - 30 + ROW_HEIGHT * len(strips))
    # Rows are numbers with labels: several heat maps on an axis of categories do not draw.
    layout["yaxis"] = axis("") | {
        "autorange": "reversed",
        "tickvals": list(range(len(strips))),
        "ticktext": [f"rank {strip.rank}" for strip in strips],
        "showgrid": False,
    }
    return {"data": data, "layout": layout}


def _heat_strip(row: int, strip: Strip, zero_ms: float) -> PlotlyJson:
    shares = [
        (*stretch, max(0, 1000 - sum(stretch)))
        for stretch in zip(strip.compute, strip.exposed_communication, strip.memory, strict=True)
    ]
    width_ms = (strip.end_ms - strip.start_ms) / max(len(shares), 1)
    first_ms = strip.start_ms - zero_ms + width_ms / 2
    texts = [
        "<br>".join(f"{kind} {share / 10:.0f}%" for kind, share in zip(KINDS, stretch, strict=True))
        for stretch in shares
    ]
    return {
        "type": "heatmap",
        "x": [round(first_ms + index * width_ms, 6) for index in range(len(shares))],
        "y": [row],
        "z": [[max(range(len(KINDS)), key=stretch.__getitem__) for stretch in shares]],
        "zmin": -0.5,
        "zmax": len(KINDS) - 0.5,
        "zsmooth": False,
        "colorscale": STEPPED,
        "showscale": False,
        "ygap": 4,
        "text": [texts],
        "hovertemplate": f"rank {strip.rank}, %{{x:.4g}} ms<br>%{{text}}<extra></extra>",
    }


def lateness_figure(lateness: Lateness) -> Figure:
    """A row per rank, a column per stretch of collectives in order; dark if others wait for the rank."""
    names = [f"rank {rank}" for rank in lateness.ranks]
    longest_us = max((us for row in lateness.late_us for us in row if us is not None), default=0.0)
    unit, factor = ("ms", 1e-3) if longest_us >= 1000 else ("µs", 1.0)
    data = {
        "type": "heatmap",
        "y": names,
        "z": [[None if us is None else us * factor for us in row] for row in lateness.late_us],
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
    layout = frame("collectives, in order", "", max(MIN_HEIGHT, MARGIN_HEIGHT - 20 + ROW_HEIGHT * len(names)))
    layout["xaxis"] |= {"showticklabels": False, "showgrid": False}
    layout["yaxis"] = names_axis(names) | {"showgrid": False}
    return {"data": [data], "layout": layout}


def waiting_figure(collectives: Sequence[CollectiveSummary]) -> Figure | None:
    """Transfer and waiting of the longest collectives; None if waiting is not known."""
    shown = [collective for collective in collectives if collective.waiting_us is not None][:MAX_BARS]
    if not shown:
        return None
    sizes = [
        "of unknown size" if collective.message_bytes is None else bytes_of(collective.message_bytes)
        for collective in shown
    ]
    rows = [f"{label(collective.kind)} {size}" for collective, size in zip(shown, sizes, strict=True)]
    bars = {
        "transfer": [collective.transfer_us / 1000 for collective in shown],
        "waiting": [(collective.waiting_us or 0.0) / 1000 for collective in shown],
    }
    return _stacked_bars(rows, bars, (COLOURS[0], COLOURS[1]), "ms, mean over ranks")


def allocated_memory_figure(ranks: Sequence[RankReport]) -> Figure | None:
    """Allocated memory over time; None if the profiler did not record it."""
    data = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": f"rank {rank.rank}",
            "x": [us / 1000 for us in rank.memory.timeline_us],
            "y": rank.memory.timeline_allocated_gib,
            "line": {"shape": "hv"},
        }
        for rank in ranks[:MAX_DRAWN_RANKS]
        if rank.memory is not None
    ]
    return {"data": data, "layout": frame("ms", "allocated, GiB", 360)} if data else None


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
    """Without a roof if `device` is None: traces may not name it."""
    roofs = [
        _roof(device, precision, points)
        for precision in precisions
        if device is not None and precision in device.peak_flops
    ]
    data = [*roofs, *_operations(points)]
    layout = frame("FLOPs per byte moved", "TFLOP/s", 440)
    layout["xaxis"] = log_axis("FLOPs per byte moved", [x for trace in data for x in trace["x"]])
    layout["yaxis"] = log_axis("TFLOP/s", [y for trace in data for y in trace["y"]])
    return {"data": data, "layout": layout}


def measured_roofline_figure(ops: Sequence[RoofReport], device: Device | None) -> Figure | None:
    """None if the traces have no shapes."""
    points = [
        Point(
            op.op,
            op.intensity_flops_per_byte,
            op.achieved_tflops * TERA,
            op.time_us / 1e6,
            f"{op.shape}, {op.precision}, {op.count} calls",
        )
        for op in ops
    ]
    return roofline_figure(points, device, sorted({op.precision for op in ops})) if points else None


def _operations(points: Sequence[Point]) -> list[PlotlyJson]:
    """The operations that take longest by name, each with a shape: colours mean parts of a step."""
    total_s = defaultdict[str, float](float)
    for point in points:
        total_s[point.name] += point.seconds
    named = sorted(total_s, key=lambda name: -total_s[name])[: len(SHAPES)]
    longest = max((point.seconds for point in points), default=1.0) or 1.0
    groups = {name: [point for point in points if point.name == name] for name in named}
    rest = [point for point in points if point.name not in groups]
    drawn = [
        _operation_points(name, groups[name], longest, shape)
        for name, shape in zip(named, SHAPES, strict=False)
    ]
    return [*drawn, *([_operation_points("others", rest, longest, "circle-open")] if rest else [])]


def _operation_points(name: str, points: Sequence[Point], longest_s: float, shape: str) -> PlotlyJson:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": label(name),
        "x": [point.intensity for point in points],
        "y": [point.flops_per_s / TERA for point in points],
        "text": [
            f"{label(point.name)}<br>{label(point.says)}<br>{seconds(point.seconds)}" for point in points
        ],
        "hovertemplate": "%{text}<br>%{y:.3g} TFLOP/s at %{x:.3g} FLOP/byte<extra></extra>",
        "marker": {
            "size": [8 + 22 * (point.seconds / longest_s) ** 0.5 for point in points],
            "color": "--compute",
            "symbol": shape,
            "opacity": 0.8,
            "line": {"color": "--page", "width": 1},
        },
    }


def _roof(device: Device, precision: str, points: Sequence[Point]) -> PlotlyJson:
    peak, bandwidth = device.peak_flops[precision], device.memory_bandwidth_bytes_per_s
    ridge = peak / bandwidth
    left = min([ridge / 30, *(point.intensity / 2 for point in points)])
    right = max([ridge * 10, *(point.intensity * 2 for point in points)])
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
    """Empty: the next one of the palette."""


def collectives_figure(transfers: Sequence[Transfer], links: Sequence[tuple[str, float]]) -> Figure:
    """`links` by name, in bytes per second."""
    groups = sorted({transfer.group for transfer in transfers})
    data = [
        _transfer_points(
            group,
            [transfer for transfer in transfers if transfer.group == group],
            PALETTE[number % len(PALETTE)],
        )
        for number, group in enumerate(groups)
    ]
    sizes = [transfer.message_bytes for transfer in transfers]
    span = [min(sizes) / 5, max(sizes) * 5] if sizes else [1.0, 1e9]
    data += [
        line(span, [rate / GIGA] * 2, f"{name}, {rate / GIGA:.3g} GB/s", dash)
        for (name, rate), dash in zip(links, ("solid", "dash", "dot"), strict=False)
    ]
    layout = frame("message size", "bus bandwidth, GB/s", 400, showlegend=True)
    layout["xaxis"] = log_axis("message size", sizes, bytes_of)
    layout["yaxis"] = log_axis("bus bandwidth, GB/s", [y for trace in data for y in trace["y"]])
    return {"data": data, "layout": layout}


def measured_collectives_figure(collectives: Sequence[CollectiveSummary]) -> Figure | None:
    """Achieved bus bandwidth over message size; None if no collective has a size."""
    transfers = [
        Transfer(
            collective.kind,
            collective.message_bytes,
            collective.bus_bandwidth_gbytes_per_s * GIGA,
            _times(collective),
        )
        for collective in collectives
        if collective.message_bytes and collective.bus_bandwidth_gbytes_per_s
    ]
    if not transfers:
        return None
    links = [collective.link_gbytes_per_s for collective in collectives if collective.link_gbytes_per_s]
    return collectives_figure(transfers, [("link", link * GIGA) for link in links[:1]])


def _times(collective: CollectiveSummary) -> str:
    total = f"{collective.count} × {collective.kind}, {collective.time_us / 1000:.3g} ms in total"
    waiting_us = collective.waiting_us
    return total if waiting_us is None else f"{total}, {waiting_us / 1000:.3g} ms of it waiting"


def _transfer_points(group: str, transfers: Sequence[Transfer], colour: str) -> PlotlyJson:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": label(group),
        "x": [transfer.message_bytes for transfer in transfers],
        "y": [transfer.bus_bytes_per_s / GIGA for transfer in transfers],
        "text": [label(transfer.says) for transfer in transfers],
        "hovertemplate": "%{text}<br>%{x:.3s}B at %{y:.3g} GB/s<extra></extra>",
        "marker": {
            "color": transfers[0].colour or colour,
            "size": 12,
            "line": {"color": "--page", "width": 1},
        },
    }
