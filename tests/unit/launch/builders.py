"""Templates and intents for the tests of launchers, unit and integration."""

from pathlib import Path
from typing import Any

from tools.launch.status import Intent
from tools.launch.template import Template, parse_templates

REPO = Path(__file__).resolve().parents[3]
EXAMPLES = REPO / "examples/launch-templates.toml"
KUBERNETES = {"image": "trainer:1", "kubernetes": {"namespace": "ml", "claim": "trials"}}


def table(launcher: str = "local", **fields: object) -> dict[str, Any]:
    """A template named `test` as TOML gives it, legal for its launcher."""
    smallest = {"name": "test", "launcher": launcher, "command": ["run"], "limits": {"wall_s": 60}}
    return smallest | (KUBERNETES if launcher == "kubernetes" else {}) | fields


def templates(launcher: str = "local", **fields: object) -> dict[str, Template]:
    return parse_templates({"template": [table(launcher, **fields)]})


def make_intent(*command: str, **changes: Any) -> Intent:  # noqa: ANN401 - any field
    fields: dict[str, Any] = {
        "key": "k1",
        "launcher": "local",
        "template": "test",
        "digest": "d" * 64,
        "mark": "k1.mark",
        "command": list(command) or ["run"],
        "environment": {},
        "workdir": "/",
        "nnodes": 2,
        "nproc": 4,
        "wall_s": 61,
    }
    return Intent(**fields | changes)
