"""Checks of plain data, put together from small ones: is this text, a number, a table with these keys?

A check raises `Fault` with the field's path; whoever read the data turns that into a DataError (our file)
or an InputError (the caller's case). Text is bounded and looked at only for characters that could
garble a terminal; what it says is never interpreted.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeGuard

Check = Callable[[str, object], None]

_MOST_CHARACTERS = 4000
_DEEPEST = 8
_SLUG = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
# Escape sequences, lone surrogates (no UTF-8 for them) and marks that reverse the direction of text.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")


class Fault(Exception):
    """What is wrong with one field; never leaves this package."""

    def __init__(self, field: str, given: object, allowed: str) -> None:
        super().__init__(field, given, allowed)
        self.field, self.given, self.allowed = field, given, allowed


@dataclass(frozen=True)
class Table:
    """Named fields, each with its check; any other key is a fault."""

    required: Mapping[str, Check]
    optional: Mapping[str, Check] = field(default_factory=dict)

    def __call__(self, path: str, value: object) -> None:
        if not isinstance(value, dict):
            raise Fault(path or "the entry", value, "must be a table")
        if missing := self.required.keys() - value.keys():
            raise Fault(_join(path, min(missing)), None, "is missing")
        for key, item in value.items():
            check = self.required.get(key) or self.optional.get(key)
            if check is None:
                known = ", ".join((*self.required, *self.optional))
                raise Fault(_join(path, key), item, f"is not a field; known: {known}")
            check(_join(path, key), item)


def slug(path: str, value: object) -> None:
    if not isinstance(value, str) or not _SLUG.fullmatch(value):
        raise Fault(path, value, "must be up to 100 of a-z, 0-9, '.', '_' and '-', and start with a-z or 0-9")


def text(at_most: int = _MOST_CHARACTERS, *, empty: bool = False) -> Check:
    def check(path: str, value: object) -> None:
        if not isinstance(value, str) or not (empty or value.strip()):
            raise Fault(path, value, "must be a text")
        if len(value) > at_most:
            raise Fault(path, value, f"has {len(value)} characters; at most {at_most} are kept")
        if found := _UNPRINTABLE.search(value):
            raise Fault(path, value, f"must not hold the control character {found.group()!a}")

    return check


line = text(200)
prose = text()


def one_of(*allowed: str) -> Check:
    def check(path: str, value: object) -> None:
        if not isinstance(value, str) or value not in allowed:
            raise Fault(path, value, f"must be one of {', '.join(allowed)}")

    return check


def number(path: str, value: object) -> None:
    if not is_number(value) or not math.isfinite(value):
        raise Fault(path, value, "must be a finite number")


def whole(path: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 10**9:
        raise Fault(path, value, "must be a whole number of at least 1")


def list_of(item: Check, at_least: int = 0, at_most: int = 64) -> Check:
    def check(path: str, value: object) -> None:
        if not isinstance(value, list) or not at_least <= len(value) <= at_most:
            raise Fault(path, value, f"must be a list of {at_least} to {at_most}")
        for position, element in enumerate(value):
            item(f"{path}[{position}]", element)

    return check


def or_null(check: Check) -> Check:
    return lambda path, value: None if value is None else check(path, value)


def plain(path: str, value: object, depth: int = 0) -> None:
    """Any JSON value, of bounded depth and with text that can be printed."""
    if isinstance(value, str):
        text(empty=True)(path, value)
    elif isinstance(value, float):
        number(path, value)
    elif isinstance(value, dict | list):
        if depth >= _DEEPEST:
            raise Fault(path, "a deeper value", f"may be nested {_DEEPEST} deep")
        named = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in named:
            text(200)(path, key if isinstance(value, dict) else str(key))
            plain(_join(path, key), item, depth + 1)
    elif value is not None and not isinstance(value, int):
        raise Fault(path, value, "must be plain JSON")


def plain_table(path: str, value: object) -> None:
    if not isinstance(value, dict):
        raise Fault(path, value, "must be a table")
    plain(path, value)


def is_number(value: object) -> TypeGuard[float]:
    # bool is an int to Python, and a condition "at least true" is a mistake.
    return isinstance(value, int | float) and not isinstance(value, bool)


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)
