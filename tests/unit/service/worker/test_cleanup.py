"""Jobs that nobody waits for, on engines of which one is out of reach."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from service.db.engine import Database
from service.sessions.cleanup import end_orphans
from tools.launch.folder import JobFolder
from tools.launch.launcher import Launcher
from tools.launch.status import Handle, Intent, JobState, JobStatus, LaunchError
from tools.trials.run import LaunchedTrials


@dataclass
class Engine:
    name: str
    ended: list[str] = field(default_factory=list)

    def find(self, key: str) -> Handle:
        if self.name == "slurm":
            raise LaunchError("squeue did not answer within 30 s")
        return Handle(self.name, key, "1")

    def status(self, _: Handle) -> JobStatus:
        return JobStatus(JobState.RUNNING)

    def cancel(self, handle: Handle) -> JobStatus:
        self.ended.append(handle.key)
        return JobStatus(JobState.CANCELLED)


def begun(jobs: Path, engine: str, session: str) -> str:
    """A job of a session that is in no database any more."""
    key = f"{session * 32}-1-0"
    folder = JobFolder.of(jobs, key)
    folder.make()
    folder.record_intent(Intent(key, engine, "t", "d", "m", ["train"], {}, str(jobs), 1, 1, 60))
    return key


def test_an_engine_out_of_reach_keeps_no_job_of_another_alive(sqlite: Database, tmp_path: Path) -> None:
    begun(tmp_path / "jobs", "slurm", "a")
    key = begun(tmp_path / "jobs", "local", "b")
    engines = {name: Engine(name) for name in ("slurm", "local")}
    trials = LaunchedTrials(lambda name: cast("Launcher", engines[name]), {}, "t", tmp_path)
    assert end_orphans(sqlite, trials, tmp_path / "jobs") == [key]
    assert engines["local"].ended == [key]
