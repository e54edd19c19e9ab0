"""Parses one JSON object strictly: duplicate keys, NaN, and other input that Python's parser accepts are
refused with the field and the line.
"""

import json
import math
import re
from functools import cache
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from tools.errors import InputError

if TYPE_CHECKING:
    from pydantic import JsonValue

    JsonObject: TypeAlias = dict[str, JsonValue]
else:
    # At run time a plain dict: commands start without pydantic, and models do not check every value again.
    JsonObject = dict

MAX_DEPTH = 64


class _RefusedError(ValueError):
    """Valid for Python's parser, refused by us; `pattern` finds the place in the text again."""

    def __init__(self, given: str, reason: str, pattern: str | None = None) -> None:
        super().__init__(reason)
        self.given = given
        self.pattern = pattern


def parse_object(data: bytes, source: str, first_line: int = 1) -> JsonObject:
    """The object in `data`, from line `first_line` of `source` on; else an InputError with the line."""
    text = _decode(data, source, first_line)
    try:
        value = _decoder().decode(text)
    except json.JSONDecodeError as error:
        line = text.split("\n", error.lineno)[error.lineno - 1]
        near = line[max(error.colno - 31, 0) : error.colno + 30].strip()
        where = _where(source, first_line + error.lineno - 1)
        raise InputError(where, near, f"not JSON: {error.msg} at column {error.colno}") from None
    except _RefusedError as error:
        raise InputError(_place(text, error.pattern, source, first_line), error.given, str(error)) from None
    except RecursionError:
        _refuse_depth(text, source, first_line)
    except ValueError:  # Python's limit on the digits of an integer
        place = _place(text, r"\d{1000}", source, first_line)
        raise InputError(place, "an integer of thousands of digits", "must be a smaller number") from None
    if _is_too_deep(text, value):
        _refuse_depth(text, source, first_line)
    if not isinstance(value, dict):
        hint = "; for several, give one per line instead of an array" if isinstance(value, list) else ""
        raise InputError(_where(source, first_line), value, f"must be a JSON object{hint}")
    return value


def is_complete(data: bytes) -> bool:
    """Whether `data` is one JSON text syntactically, acceptable or not."""
    try:
        json.loads(data)
    except RecursionError:
        return True
    except ValueError:
        return False
    return True


@cache
def _decoder() -> json.JSONDecoder:
    """Built once: json.loads with hooks would build it anew for each line of a batch."""
    return json.JSONDecoder(
        parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_without_repeats
    )


def _decode(data: bytes, source: str, first_line: int) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = first_line + data.count(b"\n", 0, error.start)
        near = data[error.start : error.start + 8]
        raise InputError(_where(source, line), near, "must be UTF-8 text") from None


def _refuse_constant(name: str) -> NoReturn:
    raise _RefusedError(name, "must be a finite number", rf"[\[:,]\s*{name}")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise _RefusedError(digits, "must be a finite number", rf"[\[:,]\s*{re.escape(digits)}")
    return value


def _without_repeats(pairs: "list[tuple[str, JsonValue]]") -> JsonObject:
    result = dict(pairs)
    if len(result) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise _RefusedError(repeated, "must appear only once in an object")
    return result


def _is_too_deep(text: str, value: object) -> bool:
    if text.count("{") + text.count("[") <= MAX_DEPTH:
        return False
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in _containers_in(node)]
    return bool(level)


def _containers_in(node: object) -> list[object]:
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return [child for child in children if isinstance(child, dict | list)]


def _refuse_depth(text: str, source: str, first_line: int) -> NoReturn:
    place = _place(text, None, source, first_line)
    raise InputError(place, "deeper nesting", f"must nest at most {MAX_DEPTH} levels") from None


def _place(text: str, pattern: str | None, source: str, first_line: int) -> str:
    """The line of what `pattern` finds; of the whole text if it has one line; else just the source."""
    match = re.search(pattern, text) if pattern else None
    if match:
        return _where(source, first_line + text.count("\n", 0, match.end()))
    return source if "\n" in text.strip() else _where(source, first_line)


def _where(source: str, line: int) -> str:
    return f"{source} line {line}"
