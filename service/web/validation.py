"""What `make validate` wrote about the cost model, read back from its page and its plot in docs/.

The measured runs themselves are not part of ASAP; the plot has their places, from which the values follow to
about a thousandth. An installation without the folder shows its own trials only.
"""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import service
from service.web.figures.accuracy import Pair
from tools.validate.plot import COLOURS, LABELS, MARGIN, SIZE

FOLDER = Path(service.__file__).resolve().parents[1] / "docs"
_CIRCLE = re.compile(r'<circle cx="([\d.]+)" cy="([\d.]+)" r="3" fill="(#[0-9a-f]{6})"')
_TICK = re.compile(rf'y="{SIZE - MARGIN + 18}" text-anchor="middle">([\d.e+-]+)</text>')
_KINDS = {colour: LABELS[kind].partition(" (")[0] for kind, colour in COLOURS.items()}


@dataclass(frozen=True)
class Section:
    title: str
    header: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Validation:
    pairs: list[Pair]
    sections: list[Section]


@cache
def find_validation(folder: Path = FOLDER) -> Validation | None:
    page, plot = folder / "validation.md", folder / "validation.svg"
    if not page.is_file() or not plot.is_file():
        return None
    return Validation(parse_plot(plot.read_text("utf-8")), parse_sections(page.read_text("utf-8")))


def parse_plot(svg: str) -> list[Pair]:
    """The reverse of tools.validate.plot.scatter_svg."""
    ticks = [float(text) for text in _TICK.findall(svg)]
    if len(ticks) < 2:
        return []
    low, high = min(ticks), max(ticks)

    def value(pixel: float) -> float:
        share = (pixel - MARGIN) / (SIZE - 2 * MARGIN)
        return float(low * (high / low) ** share)

    return [
        Pair(value(float(x)), value(SIZE - float(y)), _KINDS.get(colour, "dense"))
        for x, y, colour in _CIRCLE.findall(svg)
    ]


def parse_sections(markdown: str) -> list[Section]:
    """Every heading with the table under it."""
    found = []
    for part in re.split(r"^## ", markdown, flags=re.MULTILINE)[1:]:
        title, _, rest = part.partition("\n")
        rows = [_cells(line) for line in rest.splitlines() if line.startswith("|")]
        if len(rows) > 2:
            found.append(Section(title.strip(), rows[0], rows[2:]))
    return found


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]
