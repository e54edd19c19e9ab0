"""What a trace shows of every rank: where its time goes, as one bar and along the time; who comes late."""

from collections.abc import Mapping, Sequence
from typing import Any

from service.report.terms import MEASURED
from service.web.figures.canvas import Figure, axis, frame, names_axis

MOST_RANKS = 64
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

Data = Mapping[str, Any]


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
    data = [_strip(row, one, zero) for row, one in enumerate(shown)]
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


def _strip(row: int, strip: Data, zero_ms: float) -> Figure:
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
