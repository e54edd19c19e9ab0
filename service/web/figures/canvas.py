"""What all figures share: the frame, the type, and text made harmless."""

from typing import Any

from service.report.text import plain

Figure = dict[str, Any]
MOST_CHARACTERS = 160
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
FONT = "system-ui, -apple-system, 'Segoe UI', sans-serif"


def label(value: object) -> str:
    """Text from elsewhere as Plotly shows it letter by letter: it reads `<b>` and `<a href>` otherwise."""
    text = plain(value)
    return (text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…").translate(_ENTITIES)


def frame(x: str, y: str, height: int, **more: object) -> Figure:
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


def axis(title: str) -> Figure:
    return {
        "title": {"text": title, "standoff": 8},
        "gridcolor": "--rule",
        "linecolor": "--rule",
        "zeroline": False,
        "automargin": True,
    }


def names_axis(names: list[str]) -> Figure:
    """Rows from top to bottom, each with its name."""
    return axis("") | {
        "type": "category",
        "categoryorder": "array",
        "categoryarray": names,
        "autorange": "reversed",
    }


def log_axis(title: str) -> Figure:
    return axis(title) | {"type": "log", "exponentformat": "SI"}


def line(x: list[float], y: list[float], name: str, dash: str = "dash", colour: str = "--soft") -> Figure:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": x,
        "y": y,
        "line": {"color": colour, "dash": dash, "width": 1.5},
        "hoverinfo": "name",
    }


def upright(at: float, dash: str) -> Figure:
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
