"""What a failed job left behind: its end, its last log lines, its heartbeats, its own account of the failure.

All of it but the end was written by the job, so it is read as data: bounded in size, never run, never trusted
over the engine's word. The files' names are those of the reference trainer; a program without them has only
its log.
"""

import json
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.launch.files import open_plain
from tools.launch.launcher import Launcher
from tools.launch.log import tail
from tools.launch.status import Handle, JobStatus

PROGRESS, FAILURES = "progress.jsonl", "failures"
_LOG_LINES, _LINE_LENGTH = 200, 2000
_FILE_BYTES = 1_000_000
_MOST_FILES = 64


@dataclass(frozen=True)
class Heartbeat:
    """One training step, as the program reported it."""

    step: int
    step_s: float
    loss: float
    unix_time_s: float


@dataclass(frozen=True)
class FailureReport:
    """An exception that a rank wrote down before it died."""

    kind: str
    message: str


@dataclass(frozen=True)
class Evidence:
    status: JobStatus
    log: Sequence[str] = ()
    heartbeats: Sequence[Heartbeat] = ()
    reports: Sequence[FailureReport] = ()


def read_evidence(status: JobStatus, out: Path, log: Path | Sequence[str]) -> Evidence:
    """`out` is the folder of results; the log is a file or, where it came over the network, lines."""
    lines = tail(log, _LOG_LINES) if isinstance(log, Path) else list(log)[-_LOG_LINES:]
    return Evidence(
        status,
        [line[:_LINE_LENGTH] for line in lines],
        list(_heartbeats(out / PROGRESS)),
        list(_reports(out / FAILURES)),
    )


def gather_evidence(launcher: Launcher, handle: Handle, to: Path) -> Evidence:
    """Of any engine's job: its results are copied to `to`, its log is read as far as it is there."""
    launcher.artefacts(handle, to)
    lines: deque[str] = deque(maxlen=_LOG_LINES)
    for chunk in launcher.logs(handle, follow=False):
        lines.extend(chunk.text.splitlines())
    return read_evidence(launcher.status(handle), to, lines)


def printable(text: str, length: int) -> str:
    """A job's words for people to read: no colours, no cursor movements of a terminal, no second line."""
    clean = "".join(letter if letter.isprintable() else " " for letter in text[: 2 * length]).strip()
    return clean if len(clean) <= length else clean[: length - 1] + "…"


def _heartbeats(path: Path) -> Iterator[Heartbeat]:
    for line in _read(path).splitlines():
        content = _parse(line)
        numbers = [_number(content.get(name)) for name in ("step", "step_s", "loss", "unix_time_s")]
        step, step_s, loss, unix_time_s = numbers
        if step is not None and loss is not None and unix_time_s is not None and math.isfinite(step):
            yield Heartbeat(int(step), step_s or 0.0, loss, unix_time_s)


def _reports(folder: Path) -> Iterator[FailureReport]:
    try:
        paths = sorted(folder.glob("*.json"))[:_MOST_FILES]
    except OSError:
        return
    for path in paths:
        content = _parse(_read(path))
        if content:
            message = str(content.get("message", ""))[:_LINE_LENGTH]
            yield FailureReport(str(content.get("kind", ""))[:100], message)


def _read(path: Path) -> str:
    """Its end, where it is too long."""
    file = open_plain(path)
    if file is None:
        return ""
    with file:
        file.seek(max(0, file.seek(0, 2) - _FILE_BYTES))
        return file.read(_FILE_BYTES).decode("utf-8", "replace")


def _parse(text: str) -> dict[str, object]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _number(value: object) -> float | None:
    """NaN and infinity are numbers here: they are what a failed training reports."""
    try:
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    except OverflowError:
        return math.inf
