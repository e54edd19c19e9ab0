"""Why a job failed: one kind, how sure, and the lines that say so.

The engine's word comes first, then the program's own report, its heartbeats, and last its log. A log is text
that anybody may have printed: it decides only about a job that the engine calls failed, never for certain.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from tools.launch.evidence import Evidence, printable
from tools.launch.failure_patterns import CAUSES, KILLED, LOST_PEER, FailureKind
from tools.launch.status import Cause, State

_REPORTED = 0.95
_MOST_LINES, _LINE_LENGTH = 5, 300
_SIGKILL = 9
# A shell reports death by signal n as 128 + n; 126 and 127 mean that there was nothing to run.
_KILLED_STATUS, _USAGE, _NOT_STARTED = 128 + _SIGKILL, 2, (126, 127)
# A step may be slow once; ten times the usual, and half a minute at least, is no step any more.
_SILENT_STEPS, _SILENT_S = 10.0, 30.0


@dataclass(frozen=True)
class Failure:
    kind: FailureKind
    confidence: float
    """From 0 (no idea) to 1 (the engine did it itself)."""
    evidence: tuple[str, ...]
    """Printable, shortened lines; free text of the job among them."""


def classify(evidence: Evidence) -> Failure | None:
    """None for a job that is still under way, or that succeeded with finite losses."""
    if not evidence.status.has_ended:
        return None
    if evidence.status.state is State.SUCCEEDED:
        return _not_finite(evidence)
    for rule in _RULES:
        found = rule(evidence)
        if found:
            return found
    return _failure(FailureKind.UNKNOWN, 0.0, _end(evidence), *evidence.log[-_MOST_LINES + 1 :])


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
    """An InputError is ASAP's own word for a wrong input; other exceptions are told by their text."""
    lines = _reported(evidence)
    found = _find_cause(lines, certain=_REPORTED)
    refused = [line for line in lines if line.startswith("InputError: ")]
    if refused and not (found and found.kind is FailureKind.OUT_OF_MEMORY):
        return _failure(FailureKind.BAD_CONFIGURATION, _REPORTED, *refused)
    return found


def _not_finite(evidence: Evidence) -> Failure | None:
    wrong = [beat for beat in evidence.heartbeats if not math.isfinite(beat.loss)]
    if not wrong:
        return None
    return _failure(FailureKind.NUMERICS, _REPORTED, f"loss {wrong[0].loss} at step {wrong[0].step}")


def _kernel_killed(evidence: Evidence) -> Failure | None:
    """Killed by SIGKILL that ASAP did not send; the kernel's counter says whether it was for memory."""
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
    """At the wall limit heartbeats tell a slow program from one that stands still."""
    status, beats = evidence.status, evidence.heartbeats
    if status.cause is not Cause.WALL_LIMIT:
        return None
    if not beats:
        return _failure(FailureKind.HANG, 0.6, _end(evidence), "not one training step was reported")
    if status.ended_unix_s is None:
        return _failure(FailureKind.WALL_LIMIT, 0.6, _end(evidence), f"{len(beats)} steps were reported")
    silent_s = status.ended_unix_s - beats[-1].unix_time_s
    usual_s = median(beat.step_s for beat in beats)
    said = f"step {beats[-1].step} ended {silent_s:.1f} s before the end; a step took {usual_s:.3g} s"
    if silent_s > max(_SILENT_S, _SILENT_STEPS * usual_s):
        return _failure(FailureKind.HANG, 0.85, _end(evidence), said)
    return _failure(FailureKind.WALL_LIMIT, 0.9, _end(evidence), said)


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
        found = _matches(lines, pattern)
        if found:
            return _failure(kind, certain or confidence, *found)
    return None


def _matches(lines: Sequence[str], pattern: re.Pattern[str]) -> list[str]:
    return [line for line in lines if pattern.search(line)][:_MOST_LINES]


def _reported(evidence: Evidence) -> list[str]:
    return [f"{report.kind}: {report.message}" for report in evidence.reports]


def _end(evidence: Evidence) -> str:
    status = evidence.status
    parts = [f"{status.source or 'engine'}: {status.cause or status.state}"]
    parts += [f"exit status {status.exit_status}"] if status.exit_status is not None else []
    parts += [f"signal {status.signal}"] if status.signal is not None else []
    return ", ".join([*parts, *([status.detail] if status.detail else [])])


def _failure(kind: FailureKind, confidence: float, *lines: str) -> Failure:
    return Failure(kind, confidence, tuple(printable(line, _LINE_LENGTH) for line in lines[:_MOST_LINES]))
