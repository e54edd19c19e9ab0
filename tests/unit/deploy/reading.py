"""The files of deploy/ as data, and the command line's own opinion of what they start."""

from pathlib import Path
from typing import Any

import yaml
from compose_spec import PyOptions
from pydantic import SecretStr

from service.cli.parser import command_parser, load_command
from service.settings import PREFIX, Settings

REPO = Path(__file__).resolve().parents[3]
DEPLOY = REPO / "deploy"
SECRETS = {
    PREFIX + name.upper()
    for name, field in Settings.model_fields.items()
    if field.annotation == SecretStr | None and name != "api_key"
}
"""Of a server; `api_key` is what a command sends."""
SETTINGS = {PREFIX + name.upper() for name in Settings.model_fields}


def compose_services() -> dict[str, Any]:
    """As Docker Compose reads them: anchors merged, names checked against each other."""
    options = PyOptions()
    options.apply_merge = True
    composed = options.from_yaml((REPO / "docker-compose.yml").read_text())
    composed.validate()
    return {name: composed.get_service(name) for name in composed.service_names()}


def manifests(file: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes" / file).read_text()))


def check_command(words: list[str]) -> None:
    """Raises when `asap` would not take these words."""
    name, *rest = words
    command_parser(name, load_command(name)).parse_args(rest)


def unknown_settings(names: set[str]) -> set[str]:
    return {name for name in names if name.startswith(PREFIX)} - SETTINGS
