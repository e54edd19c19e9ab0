"""The state of a job in one vocabulary for all engines, the handle to find it again, and waiting for its
end.

Light imports only: the supervisor starts with it.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from tools.errors import AsapError


class LaunchError(AsapError):
    """The engine refused, cannot be reached, or has lost the job; the message repeats its words."""


class State(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"
    """Nobody knows how it ended: the engine has forgotten it, or its supervisor was killed."""


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


ENDED = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED, State.LOST})


@dataclass(frozen=True)
class Handle:
    """What a caller keeps of a job; all fields are texts, so that any store can hold it."""

    launcher: str
    key: str
    reference: str
    """The engine's name for the job: a process, a Slurm job id, a namespace and object name."""


@dataclass(frozen=True)
class JobStatus:
    """`exit_status` and `signal` are the engine's figures; None where it has none, never a guess."""

    state: State
    cause: Cause | None = None
    exit_status: int | None = None
    signal: int | None = None
    detail: str = ""
    source: str = ""
    """Who said so: supervisor, scontrol, sacct, job script, TrainJob, ..."""
    nodes: tuple[str, ...] = ()
    started_unix_s: float | None = None
    ended_unix_s: float | None = None
    oom_kills: int | None = None
    """Processes that the kernel killed for memory on this machine while a local job ran."""

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "JobStatus":
        """What `to_json` gave, after a journey through JSON."""
        cause = content.get("cause")
        given = {name: content[name] for name in cls.__dataclass_fields__ if name in content}
        return cls(
            **given
            | {
                "state": State(content["state"]),
                "cause": Cause(cause) if cause else None,
                "nodes": tuple(content.get("nodes", ())),
            }
        )


def exit_state(exit_status: int | None, signal: int | None) -> State:
    """Of a program that ended by itself."""
    return State.SUCCEEDED if exit_status == 0 and not signal else State.FAILED


def wait_for_end(ask: Callable[[], JobStatus], pause: Callable[[float], None], timeout_s: float) -> JobStatus:
    """Asks at least once. A controller may restart meanwhile: its error counts only when the time is over.

    `pause` is told how many seconds are left.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            status = ask()
        except LaunchError:
            if time.monotonic() >= deadline_s:
                raise
        else:
            if status.has_ended or time.monotonic() >= deadline_s:
                return status
        pause(max(0.0, deadline_s - time.monotonic()))


def has_ended(ask: Callable[[], JobStatus]) -> bool:
    """False where the engine is out of reach: it is asked again."""
    try:
        return ask().has_ended
    except LaunchError:
        return False
