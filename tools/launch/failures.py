"""Why a job failed: one kind, a confidence, and the lines that show it, from what the job left behind.

The engine's report comes first, then the program's own, its heartbeats, and last its log.
"""

import json
import math
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from statistics import median

from tools.launch.files import open_plain, tail
from tools.launch.launcher import Launcher
from tools.launch.status import Cause, Handle, JobStatus, State
from tools.scenario.fields import JsonObject

PROGRESS, FAILURES = "progress.jsonl", "failures"
_LOG_LINES, _LINE_LENGTH = 200, 2000
_FILE_BYTES = 1_000_000
_MAX_FILES = 64
_REPORTED = 0.95
_MAX_LINES, _EVIDENCE_LENGTH = 5, 300
_SIGKILL = 9
# A shell reports death by signal n as 128 + n; 126 and 127 mean that there was nothing to run.
_KILLED_STATUS, _USAGE, _NOT_STARTED = 128 + _SIGKILL, 2, (126, 127)
# A step may be slow once; ten times the usual, and half a minute at least, is no step any more.
_SILENT_STEPS, _SILENT_S = 10.0, 30.0


class FailureKind(StrEnum):
    OUT_OF_MEMORY = "out_of_memory"
    HANG = "hang"
    COMMUNICATION_TIMEOUT = "communication_timeout"
    NODE_DOWN = "node_down"
    NUMERICS = "numerics"
    BAD_CONFIGURATION = "bad_configuration"
    CANCELLED = "cancelled"
    WALL_LIMIT = "wall_limit"
    UNKNOWN = "unknown"


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


@dataclass(frozen=True)
class Failure:
    kind: FailureKind
    confidence: float
    """From 0 (no idea) to 1 (the engine did it itself)."""
    evidence: tuple[str, ...]
    """Printable, shortened lines; free text of the job among them."""


def read_evidence(status: JobStatus, out: Path, log: Path | Sequence[str]) -> Evidence:
    """`out` is the folder of results; the log is a file, or lines if it came over the network."""
    lines = tail(log, _LOG_LINES) if isinstance(log, Path) else list(log)[-_LOG_LINES:]
    return Evidence(
        status,
        [line[:_LINE_LENGTH] for line in lines],
        list(_heartbeats(out / PROGRESS)),
        list(_reports(out / FAILURES)),
    )


def gather_evidence(launcher: Launcher, handle: Handle, to: Path) -> Evidence:
    """From any engine: copies the results to `to` and reads the log that exists so far."""
    launcher.artefacts(handle, to)
    lines: deque[str] = deque(maxlen=_LOG_LINES)
    for chunk in launcher.logs(handle, follow=False):
        lines.extend(chunk.text.splitlines())
    return read_evidence(launcher.status(handle), to, lines)


def printable(text: str, length: int) -> str:
    """Output of a job, made safe to display: one line, no colours, no terminal control sequences."""
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
        paths = sorted(folder.glob("*.json"))[:_MAX_FILES]
    except OSError:
        return
    for path in paths:
        content = _parse(_read(path))
        if content:
            message = str(content.get("message", ""))[:_LINE_LENGTH]
            yield FailureReport(str(content.get("kind", ""))[:100], message)


def _read(path: Path) -> str:
    """The end of the file if it is too long."""
    file = open_plain(path)
    if file is None:
        return ""
    with file:
        file.seek(max(0, file.seek(0, 2) - _FILE_BYTES))
        return file.read(_FILE_BYTES).decode("utf-8", "replace")


def _parse(text: str) -> JsonObject:
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


def _any(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


MEMORY = _any(
    r"\b(CUDA|HIP|XPU|NPU|MPS) out of memory",
    r"\bOutOfMemoryError\b",
    r"can't allocate memory: you tried to allocate",
    r"Cannot allocate memory",
    r"^(\[rank\d+\]: )?MemoryError\b",
    r"Cuda failure \d* ?'out of memory'",
    r"CUBLAS_STATUS_ALLOC_FAILED",
    r"RESOURCE_EXHAUSTED: ",
    r"Exceeded (job|step) memory limit",
    r"exceeded memory limit \(",
    r"oom[-_]kill event",
    r"Out of memory: Killed process",
    r"\bOOMKilled\b",
)
NUMERICS = _any(
    r"\bloss (is|was|became) (nan|inf|not finite|non-?finite)",
    r"\bnon-?finite (loss|gradient|grad norm)",
    r"found NaN in (local|global|loss|grad)",
    r"NaN or Inf found",
    r"\bFloatingPointError\b",
    r"returned nan values in its",
)
CONFIGURATION = _any(
    r"\berror: unrecognized arguments",
    r"\berror: the following arguments are required",
    r"\berror: argument \S+: (invalid|expected)",
    r"^trainer: error: ",
    r"\b(ModuleNotFoundError|ImportError): ",
    r"can't open file .* No such file or directory",
    r"\bValidationError: \d+ validation error",
    r"must be divisible by",
    r"is not divisible by",
)
NODE = _any(
    r"CANCELLED AT \S+ DUE TO NODE FAILURE",
    r"srun: error: Node failure on",
    r"uncorrectable ECC error",
    r"\bNVRM: Xid\b",
    r"GPU has fallen off the bus",
    r"CUDA error: (unspecified launch failure|hardware stack error|device unavailable)",
)
TIMEOUT = _any(
    r"Watchdog caught collective operation timeout",
    r"Timed out waiting \d+ms for (send|recv) operation",
    r"Application timeout caused pair closure",
    r"failed to pass monitoredBarrier in",
    r"timed out in monitoredBarrier",
    r"wait timeout after \d+ms, keys",
    r"\bRendezvousTimeoutError\b",
    r"Socket Timeout",
)
LOST_PEER = _any(
    r"Connection closed by peer",
    r"Connection reset by peer",
    r"\bnccl(Remote|System|Internal)Error\b",
    r"\bRendezvousConnectionError\b",
    r"Broken pipe",
)
KILLED = _any(r"failed \(exitcode: -9\)", r"Signal 9 \(SIGKILL\) received by PID", r"task \d+: Killed$")

CAUSES: tuple[tuple[FailureKind, re.Pattern[str], float], ...] = (
    (FailureKind.OUT_OF_MEMORY, MEMORY, 0.85),
    (FailureKind.NODE_DOWN, NODE, 0.8),
    (FailureKind.NUMERICS, NUMERICS, 0.75),
    (FailureKind.BAD_CONFIGURATION, CONFIGURATION, 0.75),
    (FailureKind.COMMUNICATION_TIMEOUT, TIMEOUT, 0.8),
)


def classify(evidence: Evidence) -> Failure | None:
    """None for a job that is still running or that succeeded with finite losses."""
    if not evidence.status.has_ended:
        return None
    if evidence.status.state is State.SUCCEEDED:
        return _not_finite(evidence)
    for rule in _RULES:
        failure = rule(evidence)
        if failure:
            return failure
    return _failure(FailureKind.UNKNOWN, 0.0, _end(evidence), *evidence.log[-_MAX_LINES + 1 :])


def _engine_says(evidence: Evidence) -> Failure | None:
    kinds = {
        Cause.CANCELLED: (FailureKind.CANCELLED, 1.0),
        Cause.OUT_OF_MEMORY: (FailureKind.OUT_OF_MEMORY, 0.98),
        Cause.NODE_FAILURE: (FailureKind.NODE_DOWN, 0.98),
        Cause.PREEMPTED: (FailureKind.NODE_DOWN, 0.9),
        Cause.START_FAILURE: (FailureKind.BAD_CONFIGURATION, 0.9),
    }
    cause = evidence.status.cause
    return _failure(*kinds[cause], _end(evidence)) if cause in kinds else None


def _program_reports(evidence: Evidence) -> Failure | None:
    """An InputError is ASAP's own refusal; other exceptions are classified by their text."""
    lines = _reported(evidence)
    failure = _find_cause(lines, certain=_REPORTED)
    refused = [line for line in lines if line.startswith("InputError: ")]
    if refused and not (failure and failure.kind is FailureKind.OUT_OF_MEMORY):
        return _failure(FailureKind.BAD_CONFIGURATION, _REPORTED, *refused)
    return failure


def _not_finite(evidence: Evidence) -> Failure | None:
    wrong = [beat for beat in evidence.heartbeats if not math.isfinite(beat.loss)]
    if not wrong:
        return None
    return _failure(FailureKind.NUMERICS, _REPORTED, f"loss {wrong[0].loss} at step {wrong[0].step}")


def _kernel_killed(evidence: Evidence) -> Failure | None:
    """Killed by SIGKILL that ASAP did not send; the kernel's counter shows whether it was for memory."""
    status = evidence.status
    killed = status.signal == _SIGKILL or status.exit_status == _KILLED_STATUS
    lines = _matches(evidence.log, KILLED)
    if status.cause is not Cause.EXIT or not (killed or lines):
        return None
    if status.oom_kills:
        proof = f"the kernel killed {status.oom_kills} processes for memory meanwhile"
        return _failure(FailureKind.OUT_OF_MEMORY, 0.9, proof, _end(evidence), *lines)
    return _failure(FailureKind.OUT_OF_MEMORY, 0.4, _end(evidence), *lines)


def _log_says(evidence: Evidence) -> Failure | None:
    return _find_cause(evidence.log, certain=None)


def _limit_reached(evidence: Evidence) -> Failure | None:
    """At the wall limit, heartbeats distinguish a slow program from a hung one."""
    status, beats = evidence.status, evidence.heartbeats
    if status.cause is not Cause.WALL_LIMIT:
        return None
    if not beats:
        return _failure(FailureKind.HANG, 0.6, _end(evidence), "no training step was reported")
    if status.ended_unix_s is None:
        return _failure(FailureKind.WALL_LIMIT, 0.6, _end(evidence), f"{len(beats)} steps were reported")
    silent_s = status.ended_unix_s - beats[-1].unix_time_s
    usual_s = median(beat.step_s for beat in beats)
    silence = f"step {beats[-1].step} ended {silent_s:.1f} s before the end; a step took {usual_s:.3g} s"
    if silent_s > max(_SILENT_S, _SILENT_STEPS * usual_s):
        return _failure(FailureKind.HANG, 0.85, _end(evidence), silence)
    return _failure(FailureKind.WALL_LIMIT, 0.9, _end(evidence), silence)


def _peer_lost(evidence: Evidence) -> Failure | None:
    lines = _matches([*_reported(evidence), *evidence.log], LOST_PEER)
    return _failure(FailureKind.COMMUNICATION_TIMEOUT, 0.5, *lines, _end(evidence)) if lines else None


def _exit_status_says(evidence: Evidence) -> Failure | None:
    status = evidence.status.exit_status
    if status in _NOT_STARTED:
        return _failure(FailureKind.BAD_CONFIGURATION, 0.85, _end(evidence))
    if status == _USAGE:
        return _failure(FailureKind.BAD_CONFIGURATION, 0.6, _end(evidence))
    if evidence.status.state is State.LOST:
        return _failure(FailureKind.NODE_DOWN, 0.4, _end(evidence))
    return None


_RULES: tuple[Callable[[Evidence], Failure | None], ...] = (
    _engine_says,
    _program_reports,
    _not_finite,
    _log_says,
    _kernel_killed,
    _limit_reached,
    _exit_status_says,
    _peer_lost,
)


def _find_cause(lines: Sequence[str], certain: float | None) -> Failure | None:
    for kind, pattern, confidence in CAUSES:
        matches = _matches(lines, pattern)
        if matches:
            return _failure(kind, certain or confidence, *matches)
    return None


def _matches(lines: Sequence[str], pattern: re.Pattern[str]) -> list[str]:
    return [line for line in lines if pattern.search(line)][:_MAX_LINES]


def _reported(evidence: Evidence) -> list[str]:
    return [f"{report.kind}: {report.message}" for report in evidence.reports]


def _end(evidence: Evidence) -> str:
    status = evidence.status
    parts = [f"{status.source or 'engine'}: {status.cause or status.state}"]
    parts += [f"exit status {status.exit_status}"] if status.exit_status is not None else []
    parts += [f"signal {status.signal}"] if status.signal is not None else []
    return ", ".join([*parts, *([status.detail] if status.detail else [])])


def _failure(kind: FailureKind, confidence: float, *lines: str) -> Failure:
    return Failure(kind, confidence, tuple(printable(line, _EVIDENCE_LENGTH) for line in lines[:_MAX_LINES]))
