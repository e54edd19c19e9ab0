"""Events that nodes emit while they work, each with a key that survives a rerun."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]
MAX_CHARACTERS = 4000
MAX_ITEMS = 5


@dataclass
class EventLog:
    """Writes the events of one run of one node."""

    node: str
    step: int
    write: Callable[[Event], None]
    clock: Callable[[], float] = time.time
    _count: int = field(default=0, init=False)

    def emit(self, kind: str, **content: object) -> None:
        self._count += 1
        self._write(str(self._count), kind, content)

    def emit_named(self, name: str, kind: str, **content: object) -> None:
        """For what a rerun of the node may not repeat: the name takes the place of the counter."""
        self._write(name, kind, content)

    def _write(self, name: str, kind: str, content: dict[str, object]) -> None:
        key = f"{self.step}/{self.node}/{name}"
        self.write({**content, "key": key, "at": self.clock(), "node": self.node, "kind": kind})


def brief(value: object) -> object:
    """The value itself, or a shortened one if it would make an event long."""
    return value if _length(value) <= MAX_CHARACTERS else _shortened(value, depth=4)


def _length(value: object) -> int:
    return len(json.dumps(value, default=str))


def _shortened(value: object, depth: int) -> object:
    if isinstance(value, Mapping):
        if depth == 0:
            return f"{len(value)} fields"
        return {str(name): _shortened(part, depth - 1) for name, part in value.items()}
    if isinstance(value, list | tuple):
        if depth == 0:
            return f"{len(value)} items"
        shown = [_shortened(part, depth - 1) for part in value[:MAX_ITEMS]]
        return [*shown, f"and {len(value) - MAX_ITEMS} more"] if len(value) > MAX_ITEMS else shown
    if isinstance(value, str) and len(value) > MAX_CHARACTERS // 4:
        return value[: MAX_CHARACTERS // 4] + "…"
    return value
