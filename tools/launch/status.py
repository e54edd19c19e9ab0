"""The state of a job in one vocabulary for all engines, its recorded intent and handle, waiting for its end.

Standard library only: the supervisor starts with it.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from tools.errors import AsapError


class LaunchError(AsapError):
    """The engine refused, is unreachable or has lost the job; the message quotes it."""


class State(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"
    """How it ended is unknown: the engine has forgotten it, or its supervisor was killed."""


class Cause(StrEnum):
    """Why a job ended, in the engine's own words; why the program failed is the business of `classify`."""

    EXIT = "exit"
    WALL_LIMIT = "wall_limit"
    CANCELLED = "cancelled"
    OUT_OF_MEMORY = "out_of_memory"
    NODE_FAILURE = "node_failure"
    PREEMPTED = "preempted"
    START_FAILURE = "start_failure"
    LOST = "lost"


MARK = "ASAP_JOB"
"""The environment variable by which a job's processes are found."""
ENDED = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED, State.LOST})


@dataclass(frozen=True)
class Handle:
    """What a caller keeps of a job; all fields are strings, so that any store can hold it."""

    launcher: str
    key: str
    reference: str
    """The engine's name for the job: a process, a Slurm job id, a namespace and object name."""


@dataclass(frozen=True)
class JobStatus:
    """`exit_status` and `signal` are as the engine reports them; None if it reports none, never a guess."""

    state: State
    cause: Cause | None = None
    exit_status: int | None = None
    signal: int | None = None
    detail: str = ""
    source: str = ""
    """Who reported it: supervisor, scontrol, sacct, job script, TrainJob, ..."""
    nodes: tuple[str, ...] = ()
    started_unix_s: float | None = None
    ended_unix_s: float | None = None
    oom_kills: int | None = None
    """Processes that the kernel killed for memory on this machine while a local job ran."""

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    @classmethod
    def from_json(cls, text: str) -> "JobStatus":
        content = json.loads(text)
        cause = content["cause"]
        content |= {
            "state": State(content["state"]),
            "cause": Cause(cause) if cause else None,
            "nodes": tuple(content["nodes"]),
        }
        return cls(**content)


@dataclass(frozen=True)
class Intent:
    """What will run: complete but for what only the engine knows."""

    key: str
    launcher: str
    template: str
    digest: str
    """Digest of the job as submitted: the same key with another digest is an error."""
    mark: str
    """Value of `MARK` in every process of the job."""
    command: list[str]
    environment: dict[str, str]
    workdir: str
    nnodes: int
    nproc: int
    wall_s: int

    @classmethod
    def from_json(cls, text: str) -> "Intent":
        return cls(**json.loads(text))


def exit_state(exit_status: int | None, signal: int | None) -> State:
    """State of a program that exited by itself."""
    return State.SUCCEEDED if exit_status == 0 and not signal else State.FAILED


def wait_for_end(
    poll: Callable[[], JobStatus], pause: Callable[[float], None], timeout_s: float
) -> JobStatus:
    """Polls at least once. A controller may restart meanwhile: its error is raised only after the timeout.

    `pause` receives the seconds left.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            status = poll()
        except LaunchError:
            if time.monotonic() >= deadline_s:
                raise
        else:
            if status.has_ended or time.monotonic() >= deadline_s:
                return status
        pause(max(0.0, deadline_s - time.monotonic()))


def has_ended(poll: Callable[[], JobStatus]) -> bool:
    """False if the engine is unreachable: the caller polls again."""
    try:
        return poll().has_ended
    except LaunchError:
        return False
