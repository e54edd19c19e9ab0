"""Numbers, units, terms and text from elsewhere as short printable strings, escaped and cut."""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from tools.physics.terms import MEMORY_PARTS, STEP_TERMS
from tools.recommend.words import format_same_decimals

STEP = {name: term.label for name, term in STEP_TERMS.items()}
MEMORY = dict(MEMORY_PARTS)
MEASURED = {
    "compute_us": "compute",
    "exposed_communication_us": "exposed communication",
    "memory_us": "copies",
    "idle_us": "idle",
}
EVIDENCE = {
    "profile": "measured",
    "roofline": "roofline",
    "model": "predicted",
    "knowledge": "knowledge",
    "trial": "trial",
}
SHOWN_SHARE = 0.001
"""A part below a thousandth of every bar is not named: it could not be seen."""
MAX_CHARACTERS = 4000
STATES = {
    "queued": "queued",
    "running": "running",
    "waiting_approval": "waiting for approval",
    "completed": "done",
    "failed": "failed",
    "cancelled": "cancelled",
}
_SPACES = re.compile(r"\s+")
_CODE = re.compile(r"`([^`]+)`")
_URL = re.compile(r"https?://[^\s<>\"'`,]+")
_ARXIV = re.compile(r"arXiv[ :](\d{4}\.\d{4,5})")
_UNITS = (("s", 1.0), ("ms", 1e3), ("µs", 1e6))
_BYTES = ("B", "kB", "MB", "GB", "TB")
_AGES = ((60.0, 1.0, "s"), (3600.0, 60.0, "min"), (86_400.0, 3600.0, "h"), (60 * 86_400.0, 86_400.0, "d"))
_JUST_NOW_S = 5.0


def visible_terms(names: Mapping[str, str], parts: Sequence[Mapping[str, float]]) -> dict[str, str]:
    """Those of the names whose part is large enough in some bar to be seen."""
    totals = [sum(bar.values()) or 1.0 for bar in parts]
    return {
        key: name
        for key, name in names.items()
        if any(bar[key] / total >= SHOWN_SHARE for bar, total in zip(parts, totals, strict=True))
    }


def plain(value: object) -> str:
    """One printable line: terminal codes, marks that turn text around and lone surrogates are spelled out."""
    shown = str(value).strip()
    if not shown.isprintable() or "  " in shown:  # rarely: a page has hundreds of texts
        text = _SPACES.sub(" ", shown)
        shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return shown if len(shown) <= MAX_CHARACTERS else shown[: MAX_CHARACTERS - 1] + "…"


def pieces(value: object) -> Iterator[tuple[bool, str]]:
    """The text in order, cut where `code` begins and ends; True stands before code."""
    for position, piece in enumerate(_CODE.split(plain(value))):
        if piece:
            yield position % 2 == 1, piece


def address(where: object) -> str | None:
    """The web address a source names, if it names one; never another scheme than http."""
    text = plain(where)
    if match := _URL.search(text):
        return match.group()
    paper = _ARXIV.search(text)
    return f"https://arxiv.org/abs/{paper.group(1)}" if paper else None


def beside_address(where: object) -> str:
    """What a source says besides its web address: a table, a file, a paper's number."""
    text, url = plain(where), address(where)
    return text.replace(url, "").strip(" ,") if url else text


def seconds(value: float, like: float | None = None) -> str:
    """Three digits, in the unit in which they (or those of `like`, in a table) are easy to read."""
    unit, factor = _unit(value if like is None else like)
    # From 999.5 on three digits would be rounded to 1.00e+03.
    digits = f"{value * factor:#.3g}".rstrip(".") if value * factor < 999.5 else f"{value * factor:,.0f}"
    return f"{digits} {unit}" if value else "0"


def seconds_alike(*values: float, like: float | None = None) -> tuple[list[str], str]:
    """Those of one range in one unit, with the same decimals."""
    unit, factor = _unit(max(values) if like is None else like)
    return format_same_decimals(*(value * factor for value in values)), unit


def seconds_span(start: float, end: float, like: float | None = None) -> str:
    """In the unit of `like`, if it stands beside it."""
    (first, last), unit = seconds_alike(start, end, like=like)
    return f"{first} to {last} {unit}"


def _unit(size_s: float) -> tuple[str, float]:
    return next((unit for unit in _UNITS if size_s * unit[1] >= 1), _UNITS[0])


def sentence(value: object) -> str:
    text = plain(value)
    return f"{text[:1].upper()}{text[1:]}" + ("" if text.endswith((".", "!", "?", "…")) else ".")


def percent(ratio: float) -> str:
    return f"{ratio:.1%}"


def signed_percent(ratio: float) -> str:
    """Without a sign if it rounds to zero."""
    text = f"{ratio:+.0%}"
    return "0%" if text in ("+0%", "-0%") else text


def times(ratio: float) -> str:
    return f"{ratio:.2f}x"


def gib(value: float) -> str:
    return f"{value:.1f} GiB"


def age(at_s: float, now_s: float | None = None, after: str = "") -> str:
    """How long ago, in one unit, with the word `after` it; a day of the calendar once that says more."""
    passed = (time.time() if now_s is None else now_s) - at_s
    if passed < _JUST_NOW_S:
        return "just now"
    for below, unit_s, unit in _AGES:
        if passed < below:
            return f"{passed / unit_s:.0f} {unit}{after}"
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d")


def ago(at_s: float, now_s: float | None = None) -> str:
    return age(at_s, now_s, " ago")


def format_value(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(format_value, value))
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


def stamp(at_s: float) -> str:
    """For machines and tooltips."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def instant(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


def count(value: float) -> str:
    return f"{value:,.0f}"


def counted(number: int, noun: str) -> str:
    """1 node, 2 nodes."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size_of(parameters: int, active: int, noun: str = "") -> str:
    """How many parameters a model has; with experts also those that one token uses."""
    whole, part = (
        f"{count / 1e6:,.3g} M" if count < 1e9 else f"{count / 1e9:,.{'3g' if count < 1e11 else '0f'}} B"
        for count in (parameters, active)
    )
    return f"{whole}{noun}" if active == parameters else f"{whole}{noun}, {part} active per token"


def bytes_of(value: float) -> str:
    """Three digits in the unit in which they are easy to read."""
    size, unit = float(value), 0
    while size >= 999.5 and unit < len(_BYTES) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.3g} {_BYTES[unit]}"


def humanize(name: str) -> str:
    """A name of the code as words: `waiting_approval`, `dp_shard`."""
    return STATES.get(name) or name.replace("_", " ")
