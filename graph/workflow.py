"""The coordinator's rules, read from the seed: which step comes next, and why."""

import tomllib
from functools import cache
from typing import Any

import kb_seed
from graph.state import Data
from tools.errors import DataError
from tools.kb.conditions import applies


@cache
def rules() -> list[dict[str, Any]]:
    return list(tomllib.loads(kb_seed.folder("workflow").joinpath("steps.toml").read_text("utf-8"))["rule"])


def first_rule(facts: Data) -> Data:
    """The step and its reason."""
    for rule in rules():
        if applies(rule["when"], facts):
            return {"step": rule["step"], "reason": rule["reason"]}
    raise DataError("kb_seed/workflow/steps.toml: no rule holds; the last one must have no condition")
