"""Calls `asap` in this process: the fixture `asap` (conftest.py) and what it returns."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

REPO = Path(__file__).resolve().parents[4]
EXAMPLE = REPO / "examples/llama-3.1-70b-64xh100.json"


class Result(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def answer(self) -> dict[str, Any]:
        """The one JSON object that was printed."""
        (line,) = self.lines
        return line

    @property
    def refused(self) -> bool:
        """Wrong input: exit status 2, nothing but one line on standard error."""
        return (self.status, self.out, self.err.count("\n")) == (2, "", 1)


Asap = Callable[..., Result]
"""Takes words; an object among them is written to a JSON file (bytes: as they are) whose path takes its
place. `stdin` is what standard input brings."""
