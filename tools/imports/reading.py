"""Text of a foreign file as a mapping. The text is data: nothing in it is executed or looked up outside."""

import json
import re
import tomllib
from collections.abc import Callable
from typing import Any

import yaml

from tools.errors import InputError
from tools.scenario.fields import shown

MAX_TEXT_CHARACTERS = 1_000_000
# YAML 1.1 reads 1:30:00 as a number to the base 60; one of thousands of places takes minutes to compute.
_LONG_BASE_60 = re.compile(r"(?::[0-5]?[0-9]){20}")
# A name of thousands of parts (a.b.c...) takes minutes to read.
_MOST_DOTS_A_LINE = 200


class _PlainLoader(yaml.SafeLoader):
    """Without aliases: a few lines of aliases to aliases stand for more than memory holds."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(
                None, None, "aliases are not read, write the value itself", mark
            )
        return super().compose_node(parent, index)


def parse_toml(text: str) -> dict[str, Any]:
    if any(line.count(".") > _MOST_DOTS_A_LINE for line in text.splitlines()):
        raise InputError("FILE", text.strip()[:40], "not a name that a setting can have")
    return _mapping(text, "TOML", tomllib.loads)


def parse_json(text: str) -> dict[str, Any]:
    return _mapping(text, "JSON", json.loads)


def parse_yaml(text: str) -> dict[str, Any]:
    if found := _LONG_BASE_60.search(text):
        raise InputError("FILE", found[0], "not a value that a setting can have")
    return _mapping(text, "YAML", lambda plain: yaml.load(plain, _PlainLoader))


def check_length(text: str) -> None:
    if len(text) > MAX_TEXT_CHARACTERS:
        raise InputError("FILE", "a longer text", f"must have at most {MAX_TEXT_CHARACTERS:,} characters")


def _mapping(text: str, kind: str, parse: Callable[[str], Any]) -> dict[str, Any]:
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
