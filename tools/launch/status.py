"""The state of a job in one vocabulary for all engines, its recorded intent and its handle.

Standard library only: the supervisor starts with it.
"""

import json
from dataclasses import dataclass
from enum import StrEnum

from tools.errors import AsapError

MARK = "ASAP_JOB"
"""The environment variable by which a job's processes are found."""


class LaunchError(AsapError):
    """The engine refused, is unreachable or has lost the job; the message quotes it."""


class JobState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"
    """How it ended is unknown: the engine has forgotten it, or its supervisor was killed."""


class FailureCause(StrEnum):
    """Why a job ended, in the engine's own words; why the program failed is the business of `classify`."""

    EXIT = "exit"
    WALL_LIMIT = "wall_limit"
    CANCELLED = "cancelled"
    OUT_OF_MEMORY = "out_of_memory"
    NODE_FAILURE = "node_failure"
    PREEMPTED = "preempted"
    START_FAILURE = "start_failure"
    LOST = "lost"


class FailureKind(StrEnum):
    """What went wrong, as `failures.classify` concludes from all evidence."""

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
class Handle:
    """What a caller keeps of a job; all fields are strings, so that any store can hold it."""

    launcher: str
    key: str
    reference: str
    """The engine's name for the job: a process, a Slurm job id, a namespace and object name."""


@dataclass(frozen=True)
class JobStatus:
    """`exit_status` and `signal` are as the engine reports them; None if it reports none, never a guess."""

    state: JobState
    cause: FailureCause | None = None
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
        return self.state not in (JobState.QUEUED, JobState.RUNNING)

    @classmethod
    def from_json(cls, text: str) -> "JobStatus":
        content = json.loads(text)
        cause = content["cause"] and FailureCause(content["cause"])
        typed = {"state": JobState(content["state"]), "cause": cause, "nodes": tuple(content["nodes"])}
        return cls(**{**content, **typed})

    @classmethod
    def exited(cls, exit_status: int | None, signal: int | None, source: str) -> "JobStatus":
        """A program that ended by itself."""
        succeeded = exit_status == 0 and not signal
        state = JobState.SUCCEEDED if succeeded else JobState.FAILED
        return cls(state, FailureCause.EXIT, exit_status, signal, source=source)

    @classmethod
    def cancelled(cls, detail: str, source: str = "folder") -> "JobStatus":
        return cls(JobState.CANCELLED, FailureCause.CANCELLED, detail=detail, source=source)

    @classmethod
    def lost(cls, detail: str, source: str = "folder") -> "JobStatus":
        return cls(JobState.LOST, FailureCause.LOST, detail=detail, source=source)


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
