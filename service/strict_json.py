"""Parses one JSON object strictly: duplicate keys, NaN and the like are refused with field and line."""

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

    def at_line(line: int) -> str:
        return f"{source} line {first_line + line}"

    def place_of(pattern: str | None) -> str:
        """The line of what the pattern finds; of the whole text if it has one line; else just the source."""
        if match := re.search(pattern, text) if pattern else None:
            return at_line(text.count("\n", 0, match.end()))
        return source if "\n" in text.strip() else at_line(0)

    too_deep = f"must nest at most {MAX_DEPTH} levels"
    try:
        text = data.decode("utf-8")
        value = _decoder().decode(text)
    except UnicodeDecodeError as error:
        where = at_line(data.count(b"\n", 0, error.start))
        raise InputError(where, data[error.start : error.start + 8], "must be UTF-8 text") from None
    except json.JSONDecodeError as error:
        line = text.split("\n", error.lineno)[error.lineno - 1]
        near = line[max(error.colno - 31, 0) : error.colno + 30].strip()
        rule = f"not JSON: {error.msg} at column {error.colno}"
        raise InputError(at_line(error.lineno - 1), near, rule) from None
    except _RefusedError as error:
        raise InputError(place_of(error.pattern), error.given, str(error)) from None
    except RecursionError:
        raise InputError(place_of(None), "deeper nesting", too_deep) from None
    except ValueError:  # Python's limit on the digits of an integer
        given = "an integer of thousands of digits"
        raise InputError(place_of(r"\d{1000}"), given, "must be a smaller number") from None
    if text.count("{") + text.count("[") > MAX_DEPTH and _is_deeper(value, MAX_DEPTH):
        raise InputError(place_of(None), "deeper nesting", too_deep)
    if not isinstance(value, dict):
        hint = "; for several, give one per line instead of an array" if isinstance(value, list) else ""
        raise InputError(at_line(0), value, f"must be a JSON object{hint}")
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

    def refuse_constant(name: str) -> NoReturn:
        raise _RefusedError(name, "must be a finite number", rf"[\[:,]\s*{name}")

    def finite(digits: str) -> float:
        value = float(digits)
        if math.isinf(value):
            raise _RefusedError(digits, "must be a finite number", rf"[\[:,]\s*{re.escape(digits)}")
        return value

    def without_repeats(pairs: "list[tuple[str, JsonValue]]") -> object:
        result = dict(pairs)
        if len(result) < len(pairs):
            keys = [key for key, _ in pairs]
            repeated = next(key for key in keys if keys.count(key) > 1)
            raise _RefusedError(repeated, "must appear only once in an object")
        return result

    return json.JSONDecoder(
        parse_constant=refuse_constant, parse_float=finite, object_pairs_hook=without_repeats
    )


def _is_deeper(value: object, levels: int) -> bool:
    level: list[JsonValue] = [value]  # type: ignore[list-item]  # what the decoder gave
    for _ in range(levels):
        children = [[*node.values()] if isinstance(node, dict) else node for node in level]
        level = [child for part in children if isinstance(part, list) for child in part]
        level = [child for child in level if isinstance(child, dict | list)]
    return bool(level)
