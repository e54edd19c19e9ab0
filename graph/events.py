"""Events that nodes emit while they work, each with a key that survives a rerun."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]
MOST_CHARACTERS = 4000
MOST_ITEMS = 5


@dataclass
class Journal:
    """Writes the events of one run of one node."""

    node: str
    step: int
    write: Callable[[Event], None]
    clock: Callable[[], float] = time.time
    _count: int = field(default=0, init=False)

    def tell(self, kind: str, **content: object) -> None:
        self._count += 1
        self._write(str(self._count), kind, content)

    def tell_once(self, name: str, kind: str, **content: object) -> None:
        """Of what may or may not happen when a node runs again: the name takes the counter's place."""
        self._write(name, kind, content)

    def _write(self, name: str, kind: str, content: dict[str, object]) -> None:
        key = f"{self.step}/{self.node}/{name}"
        self.write({**content, "key": key, "at": self.clock(), "node": self.node, "kind": kind})


def brief(value: object) -> object:
    """The value itself, or a shortened one where it would make an event long."""
    return value if _length(value) <= MOST_CHARACTERS else _shortened(value, depth=4)


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
        shown = [_shortened(part, depth - 1) for part in value[:MOST_ITEMS]]
        return [*shown, f"and {len(value) - MOST_ITEMS} more"] if len(value) > MOST_ITEMS else shown
    if isinstance(value, str) and len(value) > MOST_CHARACTERS // 4:
        return value[: MOST_CHARACTERS // 4] + "…"
    return value
