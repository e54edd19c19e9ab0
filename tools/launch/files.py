"""Names of a job's files, and writing them whole. Standard library only: the supervisor starts with it."""

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

INTENT, INPUTS, OUT, LOG = "intent.json", "inputs", "out", "log.txt"
CANCELLED, FINAL = "cancelled", "final.json"


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
