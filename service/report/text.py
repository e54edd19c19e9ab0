"""Words and numbers of a report, made safe to show: names, notes and kernels are text from elsewhere."""

import re
from collections.abc import Iterator

from tools.recommend.span import alike

MOST_CHARACTERS = 4000
_SPACES = re.compile(r"\s+")
_CODE = re.compile(r"`([^`]+)`")
_URL = re.compile(r"https?://[^\s<>\"'`,]+")
_UNITS = (("s", 1.0), ("ms", 1e3), ("µs", 1e6))
_ARXIV = re.compile(r"arXiv[ :](\d{4}\.\d{4,5})")


def plain(value: object) -> str:
    """One printable line: terminal codes, marks that turn text around and lone surrogates are spelled out."""
    text = _SPACES.sub(" ", str(value)).strip()
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return shown if len(shown) <= MOST_CHARACTERS else shown[: MOST_CHARACTERS - 1] + "…"


def pieces(value: object) -> Iterator[tuple[bool, str]]:
    """The text in order, cut where `code` begins and ends; True stands before code."""
    for position, piece in enumerate(_CODE.split(plain(value))):
        if piece:
            yield position % 2 == 1, piece


def address(where: object) -> str | None:
    """The web address a source names, if it names one; never another scheme than http."""
    text = plain(where)
    if found := _URL.search(text):
        return found.group()
    paper = _ARXIV.search(text)
    return f"https://arxiv.org/abs/{paper.group(1)}" if paper else None


def beside_address(where: object) -> str:
    """What a source says besides its web address: a table, a file, a paper's number."""
    text, found = plain(where), address(where)
    return text.replace(found, "").strip(" ,") if found else text


def seconds(value: float, like: float | None = None) -> str:
    """Three digits, in the unit in which they (or those of `like`, in a table) are easy to read."""
    unit, factor = _unit(value if like is None else like)
    # From 999.5 on three digits would be rounded to 1.00e+03.
    told = f"{value * factor:#.3g}".rstrip(".") if value * factor < 999.5 else f"{value * factor:,.0f}"
    return f"{told} {unit}" if value else "0"


def seconds_alike(*values: float) -> tuple[list[str], str]:
    """Those of one range in one unit, with the same decimals."""
    unit, factor = _unit(max(values))
    return alike(*(value * factor for value in values)), unit


def seconds_span(start: float, end: float) -> str:
    (first, last), unit = seconds_alike(start, end)
    return f"{first} to {last} {unit}"


def _unit(size_s: float) -> tuple[str, float]:
    return next((one for one in _UNITS if size_s * one[1] >= 1), _UNITS[0])


def sentence(value: object) -> str:
    text = plain(value)
    return f"{text[:1].upper()}{text[1:]}" + ("" if text.endswith((".", "!", "?", "…")) else ".")


def percent(ratio: float) -> str:
    return f"{ratio:.1%}"


def times(ratio: float) -> str:
    return f"{ratio:.2f}x"


def gib(value: float) -> str:
    return f"{value:.1f} GiB"
