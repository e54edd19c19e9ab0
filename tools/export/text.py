"""Values as TOML, YAML and JSON text with a comment on top.

The TOML writer covers what our exports hold: tables of numbers, booleans, plain names and lists of names.
"""

import json
from collections.abc import Mapping
from typing import Any

import yaml


def comment_lines(lines: tuple[str, ...]) -> str:
    return "".join(f"# {line}\n" if line else "#\n" for line in lines)


def toml_text(comments: tuple[str, ...], tables: Mapping[str, Mapping[str, Any]]) -> str:
    parts = [comment_lines(comments)]
    for name, table in tables.items():
        rows = "".join(f"{key} = {_toml_value(value)}\n" for key, value in table.items())
        parts.append(f"[{name}]\n{rows}")
    return "\n".join(parts)


def yaml_text(comments: tuple[str, ...], values: Mapping[str, Any]) -> str:
    return comment_lines(comments) + yaml.safe_dump(dict(values), sort_keys=False, default_flow_style=False)


def json_text(values: Mapping[str, Any]) -> str:
    return json.dumps(values, indent=2, allow_nan=False) + "\n"


def _toml_value(value: object) -> str:
    # TOML writes booleans, numbers, arrays and simple strings as JSON does.
    return json.dumps(value)
