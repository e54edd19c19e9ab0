"""Small traces written by hand, so that every expected figure can be added up in the head."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Event = dict[str, Any]
WriteTrace = Callable[..., Path]


@pytest.fixture
def write_trace(tmp_path: Path) -> WriteTrace:
    """Writes events as one trace file and returns its path."""

    def write(events: list[Event], name: str = "rank0.json", **metadata: object) -> Path:
        path = tmp_path / name
        text = json.dumps({**metadata, "traceEvents": events}).encode()
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
        return path

    return write


@pytest.fixture
def kernel() -> Callable[..., Event]:
    """A kernel from `start` for `length` microseconds, with its launch's correlation if any."""

    def make(
        name: str,
        start: float,
        length: float,
        stream: int = 7,
        correlation: int | None = None,
        **args: object,
    ) -> Event:
        more = {} if correlation is None else {"correlation": correlation}
        return {
            "ph": "X",
            "cat": "kernel",
            "name": name,
            "pid": 0,
            "tid": stream,
            "ts": start,
            "dur": length,
            "args": {"stream": stream, **more, **args},
        }

    return make


@pytest.fixture
def host_event() -> Callable[..., Event]:
    """A launch, op or annotation on the host."""

    def make(category: str, name: str, start: float, length: float, thread: int = 1, **args: object) -> Event:
        return {
            "ph": "X",
            "cat": category,
            "name": name,
            "pid": 1,
            "tid": thread,
            "ts": start,
            "dur": length,
            "args": args,
        }

    return make
