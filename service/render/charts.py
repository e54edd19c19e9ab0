"""Charts as data: two axes, and layers of points, lines and boxes over them.

static/charts.js draws them, with uPlot (static/vendor) for the axes, the zoom and the linked cursors. Colours
are the names of the stylesheet's custom properties, texts are plain text: the browser sets them as such.
"""

from collections.abc import Sequence
from importlib.resources import files
from typing import Literal, TypedDict

from service.render.text import plain

SCRIPTS = {"uplot.js": ("vendor", "uPlot.min.js"), "charts.js": ("charts.js",)}
STYLES = {"uplot.css": ("vendor", "uPlot.min.css"), "charts.css": ("charts.css",)}
"""Where each file that draws lies under service/render/static, by the name it is served under."""
MAX_CHARACTERS = 160
PALETTE = (
    "--compute", "--tp_comm_exposed", "--dp_comm_exposed", "--optimizer", "--ep_comm_exposed",
    "--memory_bound_ops", "--cp_comm_exposed",
)  # fmt: skip
"""For things that have no colour of their own."""
ROW_HEIGHT = 24
FRAME_HEIGHT = 56
"""What the bottom axis takes with its title."""
ROOM = 0.04
"""The share of an axis that is left free on either side of what it shows."""

Unit = Literal["", "count", "bytes", "percent", "day"]
Dash = Literal["solid", "dash", "dot"]


class Axis(TypedDict):
    title: str
    low: float
    high: float
    is_log: bool
    unit: Unit
    """How its marks are written."""
    rows: list[str]
    """Names of the rows from top to bottom; empty on an axis of numbers."""


class Layer(TypedDict, total=False):
    """Points at x and y, a line through them, or boxes from x to `x1` in the rows `y`; without a text a mark
    does not answer the pointer."""

    kind: Literal["points", "line", "boxes"]
    name: str
    x: Sequence[float | None]
    y: Sequence[float | None]
    x1: Sequence[float]
    texts: Sequence[str]
    labels: Sequence[str]
    """Written on the points or boxes."""
    colour: str
    colours: Sequence[str]
    """A colour for each box, in place of one for all."""
    strength: Sequence[float]
    """How opaque each box is."""
    shape: str
    sizes: Sequence[float]
    size: float
    opacity: float
    dash: Dash
    is_stepped: bool


class Chart(TypedDict):
    x: Axis
    y: Axis
    height: int
    layers: list[Layer]
    uprights: list[float]
    """Dashed vertical lines."""


def chart_file(*path: str) -> str:
    return files("service.render").joinpath("static", *path).read_text(encoding="utf-8")


def chart(x: Axis, y: Axis, height: int, layers: Sequence[Layer], uprights: Sequence[float] = ()) -> Chart:
    return {"x": x, "y": y, "height": height, "layers": list(layers), "uprights": list(uprights)}


def label(value: object) -> str:
    """Text from elsewhere in one line that prints."""
    text = plain(value)
    return text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 1] + "…"


def axis(title: str, values: Sequence[float | None], unit: Unit = "", *, from_zero: bool = False) -> Axis:
    found = [value for value in values if value is not None] or [0.0, 1.0]
    low, high = min(found), max(found)
    room = ROOM * (high - low) or 0.1 * abs(high) or 1.0
    low = 0.0 if from_zero else low - room if low < 0 else max(0.0, low - room)
    return {"title": title, "low": low, "high": high + room, "is_log": False, "unit": unit, "rows": []}


def log_axis(title: str, values: Sequence[float | None], unit: Unit = "") -> Axis:
    found = [value for value in values if value is not None and value > 0] or [1.0]
    low, high = min(found), max(found)
    room = (high / low) ** ROOM if high > low else 1.6
    return {"title": title, "low": low / room, "high": high * room, "is_log": True, "unit": unit, "rows": []}


def rows_axis(names: Sequence[str], title: str = "") -> Axis:
    high = len(names) - 0.5
    return {"title": title, "low": -0.5, "high": high, "is_log": False, "unit": "", "rows": list(names)}


def rows_height(count: int, row: int = ROW_HEIGHT) -> int:
    return FRAME_HEIGHT + row * max(count, 2)


def points(
    name: str, x: Sequence[float], y: Sequence[float], texts: Sequence[str], colour: str, size: float = 7
) -> Layer:
    return {"kind": "points", "name": name, "x": x, "y": y, "texts": texts, "colour": colour, "size": size}


def line(
    name: str,
    x: Sequence[float | None],
    y: Sequence[float | None],
    dash: Dash = "dash",
    colour: str = "--soft",
) -> Layer:
    return {"kind": "line", "name": name, "x": x, "y": y, "dash": dash, "colour": colour}


def boxes(
    name: str, x: Sequence[float], x1: Sequence[float], y: Sequence[float], texts: Sequence[str]
) -> Layer:
    """From `x` to `x1` in the rows `y`."""
    return {"kind": "boxes", "name": name, "x": x, "x1": x1, "y": y, "texts": texts}
