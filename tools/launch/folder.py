"""A job's folder: everything ASAP knows about it, written atomically; results copied without following links;
the end of its log.

Standard library only: the supervisor starts with it.
"""

import fcntl
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from tools.errors import InputError
from tools.launch.status import Intent, JobStatus

INPUTS, OUT, LOG = "inputs", "out", "log.txt"
LOG_BYTES = 262_144
_INTENT, _CANCELLED, _FINAL, _LOCK = "intent.json", "cancelled", "final.json", "submit.lock"
_KEY = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")


def check_key(key: object) -> None:
    """Keys name folders, Slurm jobs and Kubernetes objects: the strictest rule of the three holds."""
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        allowed = "must be 1 to 40 lower-case letters, digits or '-', with '-' only inside"
        raise InputError("key", key, allowed)


@dataclass(frozen=True)
class JobFolder:
    path: Path

    @classmethod
    def of(cls, root: Path, key: str) -> "JobFolder":
        check_key(key)
        return cls(root.absolute() / key)

    @property
    def inputs(self) -> Path:
        return self.path / INPUTS

    @property
    def out(self) -> Path:
        return self.path / OUT

    @property
    def log(self) -> Path:
        return self.path / LOG

    def make(self, *, for_others: bool = False) -> None:
        """With `for_others` any user may read the inputs and write results, as a container's user must."""
        for folder, mode in ((self.path, 0o755), (self.inputs, 0o755), (self.out, 0o777)):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if for_others:
                folder.chmod(mode)

    def add_input(self, name: str, text: str, *, for_others: bool = False) -> None:
        write_whole(self.inputs / name, text)
        if for_others:
            (self.inputs / name).chmod(0o644)

    def find_intent(self) -> Intent | None:
        text = self.read(_INTENT)
        return Intent(**json.loads(text)) if text else None

    def record_intent(self, intent: Intent) -> Intent:
        """The intent that was recorded first."""
        self.write(_INTENT, asdict(intent), only_first=True)
        return self.find_intent() or intent

    def mark_cancelled(self) -> None:
        self.write(_CANCELLED, {})

    @property
    def is_cancelled(self) -> bool:
        return (self.path / _CANCELLED).exists()

    def find_final(self) -> JobStatus | None:
        text = self.read(_FINAL)
        return JobStatus.from_json(text) if text else None

    def keep_final(self, status: JobStatus) -> JobStatus:
        """The first end counts: a job ends once."""
        if not status.has_ended:
            return status
        self.write(_FINAL, asdict(status), only_first=True)
        return self.find_final() or status

    def read(self, name: str) -> str | None:
        """None if there is no such file, or if it is empty."""
        try:
            return (self.path / name).read_text(encoding="utf-8", errors="replace").strip() or None
        except FileNotFoundError:
            return None

    def write(self, name: str, content: object, *, only_first: bool = False) -> None:
        write_whole(self.path / name, json.dumps(content, indent=1) + "\n", only_first=only_first)

    @contextmanager
    def submission(self) -> Iterator[int]:
        """One submitter at a time; a child that inherits the descriptor holds the lock too."""
        descriptor = self.open_lock(_LOCK)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)

    def open_lock(self, name: str) -> int:
        return os.open(self.path / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def try_lock(descriptor: int) -> bool:
    """False if another process holds the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


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
        beside.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


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


def copy_results(source: Path, to: Path) -> list[Path]:
    """Copies every regular file below `source`; links, pipes and devices are left. Gives paths below `to`."""
    copied = []
    for folder, names, files in os.walk(source, followlinks=False):
        names.sort()
        for name in sorted(files):
            path = Path(folder) / name
            file = open_plain(path)
            if file is None:
                continue
            relative = path.relative_to(source)
            target = to / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            beside = target.with_name(f".{os.getpid()}.part")  # a longer name might be too long
            with file, beside.open("wb") as copy:
                shutil.copyfileobj(file, copy)
            beside.replace(target)
            copied.append(relative)
    return copied


def read_end(path: Path, limit_bytes: int) -> str:
    """The end of a regular file; empty if there is none."""
    file = open_plain(path)
    if file is None:
        return ""
    with file:
        file.seek(max(0, file.seek(0, 2) - limit_bytes))
        return file.read(limit_bytes).decode("utf-8", "replace")


def tail(path: Path, lines: int) -> list[str]:
    return read_end(path, LOG_BYTES).splitlines()[-lines:]
