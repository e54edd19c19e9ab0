"""Reads nightly.yaml: a configuration for `asap nightly run`, with paths beside the file."""

from pathlib import Path
from typing import Any

import yaml

from service.cli.io import MAX_SCENARIO_BYTES, read_object
from service.nightly.definition import Config, Workload, parse
from tools.errors import InputError

MOST_BYTES = 4 << 20


class _Loader(yaml.SafeLoader):
    """Refuses a key that is written twice: one of them would be silently lost."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:  # noqa: ANN401 - as PyYAML has it
        """Here, where a merge (<<) has not yet added the keys of others."""
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.composer.ComposerError(None, None, f"{key.value} is there twice", key.start_mark)
            seen.add(key.value)
        return node


def load_config(path: Path) -> Config:
    """Raises InputError; whether each workload's scenario can be read is found out when it runs."""
    return parse(Config, load_yaml(path))


def load_yaml(path: Path, field: str = "--config") -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise InputError(field, str(path), f"{error.strerror or error}; give a readable file") from None
    if len(content) > MOST_BYTES:
        raise InputError(field, str(path), f"must be at most {MOST_BYTES >> 20} MiB")
    try:
        # A loader of the safe kind, which makes plain data only.
        given = yaml.load(content, Loader=_Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(field, str(path), f"must be YAML: {reason}") from None
    if not isinstance(given, dict) or not all(isinstance(name, str) for name in given):
        raise InputError(field, str(path), "must hold workloads and options")
    return given


def scenario_of(workload: Workload, base: Path) -> dict[str, Any]:
    """The scenario itself, or what the file that it names holds."""
    if isinstance(workload.scenario, dict):
        return workload.scenario
    try:
        return dict(read_object(str(base / workload.scenario), MAX_SCENARIO_BYTES))
    except InputError as error:
        field = "scenario" if error.field == "FILE" else error.field
        raise InputError(field, error.given, error.allowed) from None
