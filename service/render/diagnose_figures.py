"""Plotly figures of the page that `asap diagnose --html` writes, as plain JSON."""

from typing import Any

from tools.hardware import Device
from tools.trace.breakdown import Timeline
from tools.trace.rank_profile import RankProfile, find_device

Figure = dict[str, Any]

COLOURS = {"compute": "#3a9d5d", "communication": "#d1495b", "copies": "#edae49", "idle": "#c9ced6"}
_CLASSES = list(COLOURS)
_STEPPED = [
    [position, colour]
    for index, colour in enumerate(COLOURS.values())
    for position in (index / len(_CLASSES), (index + 1) / len(_CLASSES))
]
_MAX_RANKS = 64
_TERMS = {
    "compute": "compute_us",
    "communication": "exposed_communication_us",
    "copies": "memory_us",
    "idle": "idle_us",
}
_KIND_COLOURS = ("#30638e", "#d1495b", "#edae49", "#3a9d5d", "#7d5ba6", "#00798c", "#8d6a4f")


def _layout(title: str, x_title: str, y_title: str, **more: object) -> Figure:
    return {
        "title": {"text": title, "x": 0.01, "font": {"size": 16}},
        "xaxis": {"title": {"text": x_title}, "zeroline": False},
        "yaxis": {"title": {"text": y_title}, "zeroline": False},
        "margin": {"l": 70, "r": 20, "t": 60, "b": 50},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "legend": {"orientation": "h", "x": 1, "xanchor": "right", "y": 1.02, "yanchor": "bottom"},
        **more,
    }


def timeline_figure(ranks: list[RankProfile]) -> Figure:
    """One strip a rank; each stretch has the colour of what filled most of it."""
    shown = [rank for rank in ranks if rank.timeline is not None][:_MAX_RANKS]
    starts_ns = [rank.timeline.start_ns for rank in shown if rank.timeline]
    spans_ns = [rank.timeline.end_ns - rank.timeline.start_ns for rank in shown if rank.timeline]
    one_clock = bool(shown) and max(starts_ns) - min(starts_ns) < 2 * max(spans_ns)
    traces = [
        _strip(row, rank, rank.timeline, min(starts_ns) if one_clock else rank.timeline.start_ns)
        for row, rank in enumerate(shown)
        if rank.timeline
    ]
    layout = _layout("Timeline", "ms" if one_clock else "ms since each rank's first event", "rank")
    # Rows are numbers with labels: several heatmaps on an axis of categories do not draw.
    labels = [str(rank.rank) for rank in shown]
    layout["yaxis"] |= {"autorange": "reversed", "tickvals": list(range(len(shown))), "ticktext": labels}
    layout["height"] = 130 + 28 * len(shown)
    return {"data": traces, "layout": layout}


def _strip(row: int, rank: RankProfile, timeline: Timeline, zero_ns: int) -> Figure:
    width_ms = (timeline.end_ns - timeline.start_ns) / len(timeline.compute) / 1e6
    first_ms = (timeline.start_ns - zero_ns) / 1e6 + width_ms / 2
    shares = list(zip(timeline.compute, timeline.exposed_communication, timeline.memory, strict=True))
    full = [(*one, 1000 - sum(one)) for one in shares]
    return {
        "type": "heatmap",
        "x": [round(first_ms + index * width_ms, 6) for index in range(len(full))],
        "y": [row],
        "z": [[max(range(4), key=one.__getitem__) for one in full]],
        "zmin": -0.5,
        "zmax": 3.5,
        "colorscale": _STEPPED,
        "showscale": False,
        "ygap": 4,
        "text": [
            [
                "<br>".join(f"{name} {share / 10:.0f}%" for name, share in zip(_CLASSES, one, strict=True))
                for one in full
            ]
        ],
        "hovertemplate": f"rank {rank.rank}, %{{x:.2f}} ms<br>%{{text}}<extra></extra>",
    }


def terms_figure(ranks: list[dict[str, Any]]) -> Figure:
    """Stacked bars: the four terms of every rank."""
    shown = ranks[:_MAX_RANKS]
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": [str(rank["rank"]) for rank in shown],
            "x": [rank[key] / 1000 for rank in shown],
            "marker": {"color": COLOURS[name]},
            "hovertemplate": f"rank %{{y}}: {name} %{{x:.2f}} ms<extra></extra>",
        }
        for name, key in _TERMS.items()
    ]
    layout = _layout("Where the time goes", "ms", "rank", barmode="stack", height=130 + 28 * len(shown))
    layout["yaxis"] |= {"type": "category", "autorange": "reversed"}
    return {"data": traces, "layout": layout}


def collectives_figure(collectives: list[dict[str, Any]]) -> Figure:
    """Achieved bus bandwidth over message size, one colour a kind, beside the link."""
    known = [one for one in collectives if one["bus_bandwidth_gbytes_per_s"] is not None]
    kinds = sorted({one["kind"] for one in known})
    traces = [
        _bandwidth_points(kind, [one for one in known if one["kind"] == kind], colour)
        for kind, colour in zip(kinds, _KIND_COLOURS * len(kinds), strict=False)
    ]
    layout = _layout("Collectives", "message size (bytes)", "bus bandwidth (GB/s)", height=420)
    layout["xaxis"] |= {"type": "log", "exponentformat": "power"}
    layout["yaxis"] |= {"type": "log", "exponentformat": "power"}
    link = next((one["link_gbytes_per_s"] for one in known if one["link_gbytes_per_s"]), None)
    if link:
        sizes = [one["message_bytes"] for one in known]
        traces.append(_line([min(sizes) / 2, max(sizes) * 2], [link, link], f"link {link:.3g} GB/s"))
    return {"data": traces, "layout": layout}


def _bandwidth_points(kind: str, entries: list[dict[str, Any]], colour: str) -> Figure:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": kind,
        "x": [one["message_bytes"] for one in entries],
        "y": [one["bus_bandwidth_gbytes_per_s"] for one in entries],
        "marker": {"size": [8 + min(24, one["time_us"] ** 0.5 / 20) for one in entries], "color": colour},
        "text": [
            f"{one['count']} × {kind}<br>{one['time_us'] / 1000:.2f} ms in total"
            + ("" if one["waiting_us"] is None else f", {one['waiting_us'] / 1000:.2f} ms of it waiting")
            for one in entries
        ],
        "hovertemplate": "%{text}<br>%{x:.3s}B, %{y:.1f} GB/s<extra></extra>",
    }


def waiting_figure(collectives: list[dict[str, Any]]) -> Figure | None:
    """Transfer and waiting of the collectives that take most time; None where waiting is not known."""
    known = [one for one in collectives if one["waiting_us"] is not None][:12]
    if not known:
        return None
    labels = [f"{one['kind']} {_size(one['message_bytes'])}" for one in known]
    parts = (("transfer", "transfer_us", "#30638e"), ("waiting", "waiting_us", COLOURS["communication"]))
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": labels,
            "x": [one[key] / 1000 for one in known],
            "marker": {"color": colour},
        }
        for name, key, colour in parts
    ]
    layout = _layout("Transfer and waiting", "ms, mean over ranks", "", barmode="stack")
    layout["height"] = 140 + 30 * len(known)
    layout["yaxis"] |= {"autorange": "reversed", "automargin": True}
    return {"data": traces, "layout": layout}


def _size(message_bytes: int | None) -> str:
    return "of unknown size" if message_bytes is None else f"{message_bytes / 1e6:.2f} MB"


def roofline_figure(ranks: list[RankProfile], device: Device | None) -> Figure | None:
    """Every op with shapes under the roof of its device; None without shapes."""
    points = [point for rank in ranks for point in rank.roofline]
    if not points:
        return None
    longest = max(point.time_ns for point in points)
    trace = {
        "type": "scatter",
        "mode": "markers",
        "name": "ops",
        "x": [point.intensity for point in points],
        "y": [point.achieved_flops_per_s / 1e12 for point in points],
        "marker": {
            "size": [6 + 20 * (point.time_ns / longest) ** 0.5 for point in points],
            "color": [COLOURS["copies"] if point.bound == "memory" else "#30638e" for point in points],
            "opacity": 0.65,
        },
        "text": [f"{point.op} {point.shape}<br>{point.precision}, {point.count} calls" for point in points],
        "hovertemplate": "%{text}<br>%{y:.1f} TFLOP/s at %{x:.1f} FLOP/B<extra></extra>",
    }
    layout = _layout("Roofline (yellow: bound by memory)", "FLOPs per byte", "TFLOP/s", height=460)
    layout["xaxis"] |= {"type": "log", "exponentformat": "power"}
    layout["yaxis"] |= {"type": "log", "exponentformat": "power"}
    device = device or find_device(next((one.device_name for one in ranks if one.device_name), None))
    precisions = sorted({point.precision for point in points})
    roofs = [_roof(device, one) for one in precisions if device is not None and one in device.peak_flops]
    return {"data": [trace, *roofs], "layout": layout}


def _roof(device: Device, precision: str) -> Figure:
    peak, bandwidth = device.peak_flops[precision], device.memory_bandwidth_bytes_per_s
    ridge = peak / bandwidth
    x = [ridge / 1000, ridge, ridge * 100]
    y = [bandwidth * x[0] / 1e12, peak / 1e12, peak / 1e12]
    return _line(x, y, f"{device.name} {precision}")


def _line(x: list[float], y: list[float], name: str) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": x,
        "y": y,
        "line": {"color": "#5b6470", "dash": "dash", "width": 1.5},
        "hoverinfo": "name",
    }


def memory_figure(ranks: list[RankProfile]) -> Figure | None:
    """Allocated memory over time; None when the profiler did not record it."""
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": f"rank {rank.rank}",
            "x": [ns / 1e6 for ns in rank.memory.time_ns],
            "y": [size / 2**30 for size in rank.memory.allocated_bytes],
            "line": {"shape": "hv"},
        }
        for rank in ranks[:_MAX_RANKS]
        if rank.memory is not None
    ]
    return (
        {"data": traces, "layout": _layout("Memory", "ms", "allocated GiB", height=360)} if traces else None
    )
