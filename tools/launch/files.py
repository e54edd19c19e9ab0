"""A job's files: names, atomic writes, copying results without following links, following a log by byte
offset.

Standard library only: the supervisor starts with it.
"""

import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

INTENT, INPUTS, OUT, LOG = "intent.json", "inputs", "out", "log.txt"
CANCELLED, FINAL = "cancelled", "final.json"
_CHUNK_BYTES = 65_536
_POLL_S = 0.2


def write_whole(path: Path, text: str, *, only_first: bool = False) -> None:
    """On disk, whole or not at all; with `only_first` an existing file stays as it is."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if only_first:
            with suppress(FileExistsError):
                os.link(beside, path)
        else:
            os.replace(beside, path)
    finally:
        with suppress(FileNotFoundError):
            beside.unlink()
    _sync_folder(path.parent)


def open_plain(path: Path) -> BinaryIO | None:
    """A regular file, or nothing: a job may leave a link to anything, or a pipe that never ends."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    return None


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def copy_results(source: Path, to: Path) -> list[Path]:
    """Copies every regular file below `source`; links, pipes and devices are left. Gives paths below `to`."""
    copied = []
    for folder, names, files in os.walk(source, followlinks=False):
        names.sort()
        for name in sorted(files):
            path = Path(folder) / name
            relative = path.relative_to(source)
            if _copy(path, to / relative):
                copied.append(relative)
    return copied


def _copy(source: Path, target: Path) -> bool:
    file = open_plain(source)
    if file is None:
        return False
    with file:
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.with_name(f".{os.getpid()}.part")  # a longer name might be too long
        with beside.open("wb") as copy:
            shutil.copyfileobj(file, copy)
        beside.replace(target)
    return True


@dataclass(frozen=True)
class LogChunk:
    """Whole lines, but for one longer than a chunk and a last one without a newline."""

    text: str
    next_offset: int
    """In bytes: where the next reader resumes."""


def follow_file(
    path: Path, offset: int, has_ended: Callable[[], bool], *, follow: bool = True, poll_s: float = _POLL_S
) -> Iterator[LogChunk]:
    """Yields what is there and, with `follow`, what comes until `has_ended`."""
    while True:
        # Polled before reading: what was written up to the end is then read below.
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
    """What can be emitted now: up to the last line's end, or a piece of a line longer than a chunk."""
    end = content.rfind(b"\n") + 1
    if end:
        return content[:end]
    return content if is_last or len(content) >= _CHUNK_BYTES else b""


def tail(path: Path, lines: int = 200, limit_bytes: int = 262_144) -> list[str]:
    """The last lines; empty if there is no log."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - limit_bytes))
            content = file.read(limit_bytes)
    except FileNotFoundError:
        return []
    return content.decode("utf-8", "replace").splitlines()[-lines:]
