"""The one interface of all engines.

`submit` is idempotent by its key. The intent is on disk before the engine hears of the job, and the engine is
asked for the key before it is given a second one: a caller that was killed anywhere in between calls `submit`
again with the same key and job, and gets the job that runs.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from tools.launch.job import Job
from tools.launch.log import LogChunk
from tools.launch.status import Handle, JobStatus


class Launcher(Protocol):
    """Runs jobs of registered templates. Raises InputError for the caller's mistakes, else LaunchError."""

    @property
    def name(self) -> str: ...

    def submit(self, key: str, job: Job) -> Handle:
        """Starts the job, or finds the one that this key has started; another job under it is refused."""
        ...

    def find(self, key: str) -> Handle | None:
        """The job that this key has started, if any."""
        ...

    def status(self, handle: Handle) -> JobStatus: ...

    def wait(self, handle: Handle, timeout_s: float) -> JobStatus:
        """Returns when the job has ended or the time is over, whichever is first."""
        ...

    def logs(self, handle: Handle, offset: int = 0, *, follow: bool = True) -> Iterator[LogChunk]:
        """Output from byte `offset` on, with `follow` until the end; each chunk says where to go on."""
        ...

    def artefacts(self, handle: Handle, to: Path) -> list[Path]:
        """Copies the results there; gives their paths below `to`."""
        ...

    def cancel(self, handle: Handle, timeout_s: float = 60.0) -> JobStatus:
        """Ends the job with all its processes and waits for that; a job that has ended stays as it is."""
        ...
