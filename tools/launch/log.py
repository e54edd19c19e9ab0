"""Following a growing log file from a byte offset, so that a reader can go on where another stopped."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_CHUNK_BYTES = 65_536
_POLL_S = 0.2


@dataclass(frozen=True)
class LogChunk:
    """Whole lines, but for one longer than a chunk and a last one without a newline."""

    text: str
    next_offset: int
    """In bytes: where the next reader goes on."""


def follow_file(
    path: Path, offset: int, has_ended: Callable[[], bool], *, follow: bool = True, poll_s: float = _POLL_S
) -> Iterator[LogChunk]:
    """Yields what is there and, with `follow`, what comes until `has_ended`."""
    while True:
        # Asked before reading: what was written up to the end is then read below.
        is_last = not follow or has_ended()
        for chunk in _read(path, offset, is_last):
            yield chunk
            offset = chunk.next_offset
        if is_last:
            return
        time.sleep(poll_s)


def _read(path: Path, offset: int, is_last: bool) -> Iterator[LogChunk]:
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        file.seek(offset)
        while content := file.read(_CHUNK_BYTES):
            taken = whole_lines(content, is_last)
            if not taken:
                return
            offset += len(taken)
            yield LogChunk(taken.decode("utf-8", "replace"), offset)
            file.seek(offset)


def whole_lines(content: bytes, is_last: bool) -> bytes:
    """What can be told now: up to the last line's end, or a piece of a line longer than a chunk."""
    end = content.rfind(b"\n") + 1
    if end:
        return content[:end]
    return content if is_last or len(content) >= _CHUNK_BYTES else b""


def tail(path: Path, lines: int = 200, limit_bytes: int = 262_144) -> list[str]:
    """The last lines; empty where there is no log."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - limit_bytes))
            content = file.read(limit_bytes)
    except FileNotFoundError:
        return []
    return content.decode("utf-8", "replace").splitlines()[-lines:]
