"""Checks the numbers in written text against those that tools returned.

A number is accepted if some figure, rounded as the text rounds it, equals it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

STRUCK = "[number removed: no tool returned it]"
VOCABULARY = (0.0, 1.0, 2.0, 3.0, 8.0, 16.0, 32.0, 80.0, 100.0)
"""Numbers of the language itself: ZeRO 0 to 3, fp8 to fp32, the 80% interval, 100%."""
_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
_UNITS = (
    ("share", re.compile(r"\s*(?:%|percent)"), None),
    ("ratio", re.compile(r"\s*(?:x\b|×|times\b|fold\b)"), re.compile(r"speed-?up\D{0,20}$", re.I)),
    ("seconds", re.compile(r"\s*s(?:econds?)?\b"), None),
    ("gib", re.compile(r"\s*GiB"), None),
)
_RATIOS = ("speedup", "ratio")


class Figure(NamedTuple):
    """A number that a tool returned; `unit` is empty where its name tells none, "text" inside a sentence."""

    value: float
    unit: str = ""


def figures_in(value: object, name: str = "") -> Iterator[Figure]:
    """Every number of plain data, those inside its texts and keys too."""
    if isinstance(value, bool) or value is None:
        return
    if isinstance(value, int | float):
        yield Figure(float(value), _unit_of(name))
    elif isinstance(value, str):
        yield from (Figure(number, "text") for number in numbers_in(value))
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from figures_in(str(key))
            own = str(key)
            yield from figures_in(part, own if _unit_of(own) or not _unit_of(name) else name)
    elif isinstance(value, Sequence):
        for part in value:
            yield from figures_in(part, name)


def numbers_in(text: str) -> list[float]:
    return [float(digits.replace(",", "")) for digits in _NUMBER.findall(text)]


def checked(text: str, figures: Sequence[Figure], names: Sequence[str] = ()) -> tuple[str, list[str]]:
    """The text with unfounded numbers struck out, and those numbers; a name that is given stands whole."""
    struck: list[str] = []
    whole = [re.escape(name) for name in names if name]

    def judge(match: re.Match[str]) -> str:
        piece = match.group()
        unit = _unit_beside(text, match)
        if piece in names or is_founded(piece, figures, unit):
            return piece
        struck.append(piece)
        return STRUCK

    return re.sub("|".join([*whole, _NUMBER.pattern]), judge, text), struck


def is_founded(number: str, figures: Sequence[Figure], unit: str = "") -> bool:
    """Whether a figure of that unit rounds to the number as it is written."""
    plain = number.replace(",", "")
    value, digits = float(plain), len(plain.partition(".")[2])
    slack = 0.5 * 10.0**-digits * (1 + 1e-9)
    if unit in ("", "share") and value in VOCABULARY:
        return True
    return any(
        abs(abs(written) - value) <= slack for figure in figures for written in _written_forms(figure, unit)
    )


def _written_forms(figure: Figure, unit: str) -> tuple[float, ...]:
    """How a figure may be written with that unit."""
    if figure.unit == "text":
        return (figure.value,)
    if unit == "share":
        shares = {"": (100 * figure.value,), "share": (100 * figure.value,)}
        return shares.get(figure.unit, (100 * (figure.value - 1),) if figure.unit == "ratio" else ())
    return (figure.value,) if unit in ("", figure.unit) or (unit and not figure.unit) else ()


def _unit_beside(text: str, match: re.Match[str]) -> str:
    for unit, after, before in _UNITS:
        if after.match(text, match.end()) or (before and before.search(text, 0, match.start())):
            return unit
    return ""


def _unit_of(name: str) -> str:
    """By the last word of a field's name, as the house writes units; empty where it has none."""
    if any(word in name for word in _RATIOS):
        return "ratio"
    suffixes = {"_s": "seconds", "_gib": "gib", "mfu": "share", "share": "share", "shares": "share"}
    return next((unit for suffix, unit in suffixes.items() if name.endswith(suffix)), "")
