"""Building blocks of the Plotly figures: layout, axes, colours and escaped labels, as plain JSON."""

import math
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any, TypedDict

from service.render.text import plain

SCRIPT = "plotly.min.js"


def plotly_script() -> str:
    """Plotly for the browser: all that is used of the package, which draws nothing here."""
    return files("plotly").joinpath("package_data", SCRIPT).read_text(encoding="utf-8")


PlotlyJson = dict[str, Any]
"""A trace, an axis or a layout, as Plotly's own schema describes it."""


class Figure(TypedDict):
    data: list[PlotlyJson]
    layout: PlotlyJson


MAX_CHARACTERS = 160
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
PALETTE = (
    "--compute", "--tp_comm_exposed", "--dp_comm_exposed", "--optimizer", "--ep_comm_exposed",
    "--memory_bound_ops", "--cp_comm_exposed",
)  # fmt: skip
"""For things that have no colour of their own."""
MIN_DECADES = 1.2
"""So that a logarithmic axis has marks, however near its values are."""
FONT = "system-ui, -apple-system, 'Segoe UI', sans-serif"


def label(value: object) -> str:
    """Text from elsewhere as Plotly shows it letter by letter: it reads `<b>` and `<a href>` otherwise."""
    text = plain(value)
    return (text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 1] + "…").translate(_ENTITIES)


def frame(x: str, y: str, height: int, **more: object) -> PlotlyJson:
    """A layout; `more` joins it."""
    return {
        "xaxis": axis(x),
        "yaxis": axis(y),
        "height": height,
        "margin": {"l": 64, "r": 16, "t": 12, "b": 48},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": FONT, "size": 12, "color": "--soft"},
        "hoverlabel": {
            "bgcolor": "--page",
            "bordercolor": "--edge",
            "font": {"color": "--ink"},
            "align": "left",
        },
        "legend": {
            "orientation": "h",
            "x": 0,
            "y": 1.02,
            "xanchor": "left",
            "yanchor": "bottom",
            "traceorder": "normal",
        },
        "hovermode": "closest",
        "dragmode": False,
        **more,
    }


def axis(title: str) -> PlotlyJson:
    return {
        "title": {"text": title, "standoff": 8},
        "gridcolor": "--rule",
        "linecolor": "--rule",
        "zeroline": False,
        "automargin": True,
    }


def names_axis(names: list[str]) -> PlotlyJson:
    """Rows from top to bottom, each with its name."""
    return axis("") | {
        "type": "category",
        "categoryorder": "array",
        "categoryarray": names,
        "autorange": "reversed",
    }


def number(value: float) -> str:
    return f"{value:,.10g}"


def log_axis(title: str, values: Sequence[float], text: Callable[[float], str] = number) -> PlotlyJson:
    """Over these values, with every mark written out: Plotly's own marks leave the zeros to the reader."""
    above = [value for value in values if value > 0] or [1.0]
    low, high = math.log10(min(above)), math.log10(max(above))
    room = max(0.06 * (high - low), (MIN_DECADES - (high - low)) / 2)
    at = marks(low - room, high + room)
    return axis(title) | {
        "type": "log",
        "range": [low - room, high + room],
        "tickvals": at,
        "ticktext": [text(value) for value in at],
    }


def marks(low: float, high: float) -> list[float]:
    """Between two powers of ten: at 1, 2 and 5, or over a long way at powers of ten alone."""
    steps = (1, 2, 5) if high - low <= 2.5 else (1,)
    powers = range(math.floor(low), math.ceil(high) + 1)
    every = [step * 10.0**power for power in powers for step in steps]
    return [value for value in every if low <= math.log10(value) <= high]


def line(x: list[float], y: list[float], name: str, dash: str = "dash", colour: str = "--soft") -> PlotlyJson:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": x,
        "y": y,
        "line": {"color": colour, "dash": dash, "width": 1.5},
        "hoverinfo": "name",
    }


def upright(at: float, dash: str) -> PlotlyJson:
    """A vertical line through the whole figure."""
    return {
        "type": "line",
        "x0": at,
        "x1": at,
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "line": {"color": "--ink", "width": 1, "dash": dash},
    }
