"""Reads configuration files and launch scripts as settings by dotted name, and tracks which were used.

The text is data: nothing in it is executed or looked up outside.
"""

import json
import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping

import yaml
from pydantic import JsonValue

from tools.errors import InputError
from tools.scenario.fields import shown

JsonObject = dict[str, JsonValue]

MAX_TEXT_CHARACTERS = 1_000_000
# YAML 1.1 reads 1:30:00 as a base-60 number; one with thousands of digits takes minutes to compute.
_LONG_BASE_60 = re.compile(r"(?::[0-5]?[0-9]){20}")
# A name of thousands of parts (a.b.c...) takes minutes to read.
_MAX_DOTS_PER_LINE = 200


class _PlainLoader(yaml.SafeLoader):
    """Refuses aliases: a few lines of aliases to aliases expand to more than memory holds."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(
                None, None, "aliases are not read, write the value itself", mark
            )
        return super().compose_node(parent, index)


def parse_toml(text: str) -> JsonObject:
    if any(line.count(".") > _MAX_DOTS_PER_LINE for line in text.splitlines()):
        raise InputError("FILE", text.strip()[:40], "not a name that a setting can have")
    return _mapping(text, "TOML", tomllib.loads)


def parse_json(text: str) -> JsonObject:
    return _mapping(text, "JSON", json.loads)


def parse_yaml(text: str) -> JsonObject:
    if match := _LONG_BASE_60.search(text):
        raise InputError("FILE", match[0], "not a value that a setting can have")
    return _mapping(text, "YAML", lambda plain: yaml.load(plain, _PlainLoader))


def check_length(text: str) -> None:
    if len(text) > MAX_TEXT_CHARACTERS:
        raise InputError("FILE", "a longer text", f"must have at most {MAX_TEXT_CHARACTERS:,} characters")


def _mapping(text: str, kind: str, parse: Callable[[str], object]) -> JsonObject:
    check_length(text)
    try:
        value = parse(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError("FILE", text.strip()[:40], f"not {kind}: {_first_line(error)}") from None
    if not isinstance(value, dict):
        raise InputError("FILE", shown(value), f"must be {kind} with named settings")
    return {str(key): item for key, item in value.items()}


def _first_line(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    mark = getattr(error, "problem_mark", None)
    place = f" at line {mark.line + 1}" if mark else ""
    problem = getattr(error, "problem", None) or str(error)
    return " ".join(problem.split())[:120] + place


_COMMENT = re.compile(r"(?m)(?:^|(?<=\s))#.*$")
# Whitespace patterns end with the line and never adjoin: backtracking over blank lines would take hours.
_ASSIGNMENT = re.compile(
    r"(?m)^[ \t]*(?:export[ \t]+)?([A-Za-z_]\w*)=[\"']?([\w.+-]+)[\"']?(?:[ \t]*;)?[ \t\r]*$"
)
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([\w.+-]*))?\}|(\w+))")
_NOISE = re.compile(r"\\\r?\n|[\"';]")
_ARRAY = re.compile(r"(?<=\w)\+?=\(")
_ASSIGNED = re.compile(r"\w+\+?=")
_OPTION = re.compile(r"--([A-Za-z][\w.-]*)(?:=(.*))?$", re.DOTALL)


def has_options(text: str) -> bool:
    """Whether the text is arguments at all, and not YAML."""
    return re.search(r"(?:^|[\s\"'(=])--[A-Za-z]", _COMMENT.sub("", text)) is not None


def parse_arguments(text: str) -> JsonObject:
    """Options by name with underscores: the value, True for a flag; the last of a repeated option wins."""
    plain = _COMMENT.sub("", text)
    variables = dict(_ASSIGNMENT.findall(plain))
    words = _NOISE.sub(" ", _ARRAY.sub("= ", _substitute(plain, variables))).split()
    options: JsonObject = {}
    name = None
    for word in map(_strip_bracket, words):
        if option := _OPTION.match(word):
            name = option[1].replace("-", "_")
            options[name] = True if option[2] is None else option[2]
        elif _ASSIGNED.match(word):
            name = None  # the next line of the script, not a value
        elif name is not None and word:
            options[name], name = word, None
    return options


def _strip_bracket(word: str) -> str:
    """The bracket that ends a bash array may be attached to its last word."""
    return word if "(" in word else word.rstrip(")")


def _substitute(text: str, variables: dict[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        return variables.get(match[1] or match[3], match[2] or match[0])

    return _VARIABLE.sub(value, text)


MAX_DEPTH = 6
UNUSED = "not used: "
"""Begins the note about a setting that an import leaves out."""


class SettingsReader:
    """A nested mapping under flat names: `parallelism.tensor_parallel_degree`.

    A value that is null or "auto" (written by Hugging Face into DeepSpeed files) counts as absent.
    """

    def __init__(self, values: Mapping[str, JsonValue], source: str, *, bare_flags: bool = False) -> None:
        self._values = dict(_flatten(values, "", MAX_DEPTH))
        self._source = source
        self._used: set[str] = set()
        # In argument text a flag has no value, and the word behind it is something else.
        self._bare_flags = bare_flags

    def integer(self, name: str, minimum: int = 1) -> int | None:
        """The whole number under the name; -1 and the like only if `minimum` allows them."""
        value = self._get(name)
        if value is None:
            return None
        number = _whole(value)
        if number is None or number < minimum or number > 10**9:
            raise self._wrong(name, value, f"allowed: an integer from {minimum} to 1,000,000,000")
        return number

    def number(self, name: str) -> float | None:
        value = self._get(name)
        if value is None:
            return None
        number = _real(value)
        if number is None or not 0 < number <= 1e9:
            raise self._wrong(name, value, "allowed: a number above 0 and up to 1,000,000,000")
        return number

    def flag(self, name: str) -> bool | None:
        value = self._get(name)
        if value is None or isinstance(value, bool):
            return value
        if self._bare_flags or str(value).lower() in ("true", "false"):
            return str(value).lower() != "false"
        raise self._wrong(name, value, "allowed: true or false")

    def word(self, name: str, allowed: Collection[str] | None = None) -> str | None:
        value = self._get(name)
        if value is None:
            return None
        if not isinstance(value, str) or (allowed is not None and value not in allowed):
            choices = f"allowed: {', '.join(allowed)}" if allowed is not None else "allowed: a name"
            raise self._wrong(name, value, choices)
        return value

    def words(self, name: str) -> list[str]:
        value = self._get(name)
        return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []

    def unused_notes(self) -> tuple[str, ...]:
        """A note for each setting that has no place in a scenario."""
        return tuple(f"{UNUSED}{name}" for name in sorted(self._values) if name not in self._used)

    def _get(self, name: str) -> object:
        self._used.add(name)
        value = self._values.get(name)
        return None if value == "auto" else value

    def _wrong(self, name: str, value: object, allowed: str) -> InputError:
        return InputError(f"{self._source}: {name}", shown(value), allowed)


def _flatten(values: Mapping[str, JsonValue], prefix: str, depth: int) -> Iterator[tuple[str, JsonValue]]:
    for key, value in values.items():
        name = f"{prefix}{key}"[:200]
        if isinstance(value, dict) and depth > 1:
            yield from _flatten(value, f"{name}.", depth - 1)
        else:
            yield name, value


def _whole(value: object) -> int | None:
    number = _real(value)
    return int(number) if number is not None and number.is_integer() else None


def _real(value: object) -> float | None:
    """Numbers, and the text of one: argument files have no types."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) < 1e18 else None
