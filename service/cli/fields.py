"""Fields that stand in an option: name=value pairs, or a JSON object."""

import json

from service.cli.strict_json import parse_object
from tools.errors import InputError


def parse_fields(text: str, option: str) -> dict[str, object]:
    if text.lstrip().startswith("{"):
        return parse_object(text.encode(), option)
    fields: dict[str, object] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals or not name.strip():
            allowed = "allowed: name=value pairs separated by commas, or a JSON object"
            raise InputError(option, part, allowed)
        fields[name.strip()] = parse_value(value.strip())
    return fields


def parse_value(text: str) -> object:
    """JSON, or where it is not, a plain word."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
