"""Why a job failed: one kind, a confidence, and the lines that show it, from what the job left behind.

The engine's report comes first, then the program's own, its heartbeats, and last its log.
"""

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

from pydantic import BeforeValidator, TypeAdapter, ValidationError

from tools.launch.folder import read_end
from tools.launch.launcher import Launcher
from tools.launch.status import FailureCause, FailureKind, Handle, JobState, JobStatus

PROGRESS, FAILURES = "progress.jsonl", "failures"
_LOG_LINES, _LINE_LENGTH = 200, 2000
_FILE_BYTES = 1_000_000
_MAX_FILES = 64
_REPORTED = 0.95
_MAX_LINES, _EVIDENCE_LENGTH = 5, 300
_SIGKILL = 9
# A shell reports death by signal n as 128 + n; 126 and 127 mean that there was nothing to run.
_KILLED_STATUS, _USAGE, _NOT_STARTED = 128 + _SIGKILL, 2, (126, 127)
# A step may be slow once; ten times the usual, and half a minute at least, is a job that hangs.
_SILENT_STEPS, _SILENT_S = 10.0, 30.0
_REFUSAL = "InputError"
"""The exception by which ASAP's own trainer refuses a plan."""

ENGINE_CAUSES = {
    FailureCause.CANCELLED: (FailureKind.CANCELLED, 1.0),
    FailureCause.OUT_OF_MEMORY: (FailureKind.OUT_OF_MEMORY, 0.98),
    FailureCause.NODE_FAILURE: (FailureKind.NODE_DOWN, 0.98),
    FailureCause.PREEMPTED: (FailureKind.NODE_DOWN, 0.9),
    FailureCause.START_FAILURE: (FailureKind.BAD_CONFIGURATION, 0.9),
}
LOG_LINES: tuple[tuple[FailureKind, float, tuple[str, ...]], ...] = (
    (
        FailureKind.OUT_OF_MEMORY,
        0.85,
        (
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
        ),
    ),
    (
        FailureKind.NODE_DOWN,
        0.8,
        (
            r"CANCELLED AT \S+ DUE TO NODE FAILURE",
            r"srun: error: Node failure on",
            r"uncorrectable ECC error",
            r"\bNVRM: Xid\b",
            r"GPU has fallen off the bus",
            r"CUDA error: (unspecified launch failure|hardware stack error|device unavailable)",
            r"\bNo space left on device\b",  # as little of the plan's doing, and the job is run again
        ),
    ),
    (
        FailureKind.NUMERICS,
        0.75,
        (
            r"\bloss (is|was|became) (nan|inf|not finite|non-?finite)",
            r"\bnon-?finite (loss|gradient|grad norm)",
            r"found NaN in (local|global|loss|grad)",
            r"NaN or Inf found",
            r"\bFloatingPointError\b",
            r"returned nan values in its",
        ),
    ),
    (
        FailureKind.BAD_CONFIGURATION,
        0.75,
        (
            r"\berror: unrecognized arguments",
            r"\berror: the following arguments are required",
            r"\berror: argument \S+: (invalid|expected)",
            r"^trainer: error: ",
            r"\b(ModuleNotFoundError|ImportError): ",
            r"can't open file .* No such file or directory",
            r"\bValidationError: \d+ validation error",
            r"must be divisible by",
            r"is not divisible by",
        ),
    ),
    (
        FailureKind.COMMUNICATION_TIMEOUT,
        0.8,
        (
            r"Watchdog caught collective operation timeout",
            r"Timed out waiting \d+ms for (send|recv) operation",
            r"Application timeout caused pair closure",
            r"failed to pass monitoredBarrier in",
            r"timed out in monitoredBarrier",
            r"wait timeout after \d+ms, keys",
            r"\bRendezvousTimeoutError\b",
            r"Socket Timeout",
        ),
    ),
)
LOST_PEER = (
    r"Connection closed by peer",
    r"Connection reset by peer",
    r"\bnccl(Remote|System|Internal)Error\b",
    r"\bRendezvousConnectionError\b",
    r"Broken pipe",
)
KILLED = (r"failed \(exitcode: -9\)", r"Signal 9 \(SIGKILL\) received by PID", r"task \d+: Killed$")


AsText = Annotated[str, BeforeValidator(str)]
"""A program may write anything there; what it writes is evidence all the same."""
SecondsIfStated = Annotated[
    float, BeforeValidator(lambda value: value if isinstance(value, int | float) else 0.0)
]


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """One training step, as the program reported it."""

    step: int
    loss: float
    unix_time_s: float
    step_s: SecondsIfStated = 0.0


@dataclass(frozen=True)
class FailureReport:
    """An exception that a rank wrote down before it died."""

    kind: AsText = ""
    message: AsText = ""


@dataclass(frozen=True)
class JobEvidence:
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


def gather_evidence(launcher: Launcher, handle: Handle, to: Path) -> JobEvidence:
    """From any engine: copies the results to `to` and reads the log that exists so far."""
    launcher.artefacts(handle, to)
    return read_evidence(launcher.status(handle), to, launcher.log_tail(handle, _LOG_LINES))


def read_evidence(status: JobStatus, out: Path, log: Sequence[str]) -> JobEvidence:
    """`out` is the folder of results."""
    heartbeat, report = TypeAdapter(Heartbeat), TypeAdapter(FailureReport)
    heartbeats, reports = [], []
    for line in read_end(out / PROGRESS, _FILE_BYTES).splitlines():
        with suppress(ValidationError):
            heartbeats.append(heartbeat.validate_json(line))
    with suppress(OSError):
        for path in sorted((out / FAILURES).glob("*.json"))[:_MAX_FILES]:
            with suppress(ValidationError):
                reports.append(report.validate_json(read_end(path, _FILE_BYTES)))
    return JobEvidence(status, [line[:_LINE_LENGTH] for line in log], heartbeats, reports)


def printable(text: str, length: int) -> str:
    """Output of a job, made safe to display: one line, no colours, no terminal control sequences."""
    clean = "".join(letter if letter.isprintable() else " " for letter in text[: 2 * length]).strip()
    return clean if len(clean) <= length else clean[: length - 1] + "…"


def classify(evidence: JobEvidence) -> Failure | None:
    """None for a job that is still running or that succeeded with finite losses."""
    if not evidence.status.has_ended:
        return None
    if evidence.status.state is JobState.SUCCEEDED:
        return _not_finite(evidence)
    return next(_explanations(evidence))


def _explanations(evidence: JobEvidence) -> Iterator[Failure]:
    """The strongest evidence first."""
    status, log = evidence.status, evidence.log
    parts = [f"{status.source or 'engine'}: {status.cause or status.state}"]
    parts += [f"exit status {status.exit_status}"] if status.exit_status is not None else []
    parts += [f"signal {status.signal}"] if status.signal is not None else []
    end = ", ".join([*parts, *([status.detail] if status.detail else [])])
    if status.cause in ENGINE_CAUSES:
        yield _failure(*ENGINE_CAUSES[status.cause], end)
    reported = [f"{item.kind[:100]}: {item.message[:_LINE_LENGTH]}" for item in evidence.reports]
    by_text = _find_cause(reported, certain=_REPORTED)
    refused = [line for item, line in zip(evidence.reports, reported, strict=True) if item.kind == _REFUSAL]
    if refused and not (by_text and by_text.kind is FailureKind.OUT_OF_MEMORY):
        yield _failure(FailureKind.BAD_CONFIGURATION, _REPORTED, *refused)
    for found in (by_text, _not_finite(evidence), _find_cause(log)):
        if found:
            yield found
    # Killed by SIGKILL that ASAP did not send; the kernel's counter shows whether it was for memory.
    lines = _matches(log, KILLED)
    killed = status.signal == _SIGKILL or status.exit_status == _KILLED_STATUS or lines
    if killed and status.cause is FailureCause.EXIT:
        proof = f"the kernel killed {status.oom_kills} processes for memory meanwhile"
        if status.oom_kills:
            yield _failure(FailureKind.OUT_OF_MEMORY, 0.9, proof, end, *lines)
        yield _failure(FailureKind.OUT_OF_MEMORY, 0.4, end, *lines)
    if status.cause is FailureCause.WALL_LIMIT:
        yield _slow_or_hung(evidence, end)
    if status.exit_status in _NOT_STARTED:
        yield _failure(FailureKind.BAD_CONFIGURATION, 0.85, end)
    if status.exit_status == _USAGE:
        yield _failure(FailureKind.BAD_CONFIGURATION, 0.6, end)
    if status.state is JobState.LOST:
        yield _failure(FailureKind.NODE_DOWN, 0.4, end)
    if lines := _matches([*reported, *log], LOST_PEER):
        yield _failure(FailureKind.COMMUNICATION_TIMEOUT, 0.5, *lines, end)
    yield _failure(FailureKind.UNKNOWN, 0.0, end, *log[-_MAX_LINES + 1 :])


def _slow_or_hung(evidence: JobEvidence, end: str) -> Failure:
    """At the wall limit, heartbeats distinguish a slow program from a hung one."""
    beats, ended_s = evidence.heartbeats, evidence.status.ended_unix_s
    if not beats:
        return _failure(FailureKind.HANG, 0.6, end, "no training step was reported")
    if ended_s is None:
        return _failure(FailureKind.WALL_LIMIT, 0.6, end, f"{len(beats)} steps were reported")
    silent_s, usual_s = ended_s - beats[-1].unix_time_s, median(beat.step_s for beat in beats)
    silence = f"step {beats[-1].step} ended {silent_s:.1f} s before the end; a step took {usual_s:.3g} s"
    if silent_s > max(_SILENT_S, _SILENT_STEPS * usual_s):
        return _failure(FailureKind.HANG, 0.85, end, silence)
    return _failure(FailureKind.WALL_LIMIT, 0.9, end, silence)


def _not_finite(evidence: JobEvidence) -> Failure | None:
    wrong = next((beat for beat in evidence.heartbeats if not math.isfinite(beat.loss)), None)
    if wrong is None:
        return None
    return _failure(FailureKind.NUMERICS, _REPORTED, f"loss {wrong.loss} at step {wrong.step}")


def _find_cause(lines: Sequence[str], certain: float | None = None) -> Failure | None:
    for kind, confidence, patterns in LOG_LINES:
        if matches := _matches(lines, patterns):
            return _failure(kind, certain or confidence, *matches)
    return None


def _matches(lines: Sequence[str], patterns: Sequence[str]) -> list[str]:
    pattern = re.compile("|".join(patterns), re.IGNORECASE)
    return [line for line in lines if pattern.search(line)][:_MAX_LINES]


def _failure(kind: FailureKind, confidence: float, *lines: str) -> Failure:
    return Failure(kind, confidence, tuple(printable(line, _EVIDENCE_LENGTH) for line in lines[:_MAX_LINES]))
