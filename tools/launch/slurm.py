"""Jobs on Slurm. The service and the nodes see the jobs' folder under the same path.

Before sbatch, the controller is asked for a job of this key's name, under a lock that an orphaned sbatch
still holds; the script's own fence is the last resort. Status: scontrol, then sacct, then the script's mark.
"""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tools.errors import InputError
from tools.launch.artefacts import copy_results
from tools.launch.errors import LaunchError
from tools.launch.files import write_whole
from tools.launch.folder import Intent, JobFolder
from tools.launch.job import Job
from tools.launch.log import LogChunk, follow_file
from tools.launch.preparing import Place, prepare
from tools.launch.slurm_commands import SlurmCommands
from tools.launch.slurm_reports import SACCT_FIELDS, read_sacct, read_scontrol
from tools.launch.slurm_script import (
    CLAIM,
    EXIT_STATUS,
    RENDEZVOUS_WORD,
    job_comment,
    job_name,
    make_script,
    sbatch_options,
)
from tools.launch.status import Cause, Handle, JobStatus, State, exit_state
from tools.launch.template import SlurmSettings, Template
from tools.launch.waiting import has_ended, wait_for_end

NAME = "slurm"
_RECORD, _SCRIPT = "slurm.json", "job.sh"


class SlurmLauncher:
    """`environment` must have PATH, and SLURM_CONF where the configuration is not in the usual place."""

    name = NAME

    def __init__(
        self,
        root: Path,
        templates: Mapping[str, Template],
        environment: Mapping[str, str],
        poll_s: float = 5.0,
    ) -> None:
        self._place = Place(NAME, root, rendezvous=RENDEZVOUS_WORD)
        self._templates = templates
        self._commands = SlurmCommands(environment)
        self._poll_s = poll_s

    def submit(self, key: str, job: Job) -> Handle:
        prepared = prepare(self._place, self._templates, key, job)
        folder, intent = prepared.folder, prepared.intent
        with folder.submission() as lock:
            job_id = self._find_job(folder, key, intent)
            if job_id is None and folder.is_cancelled:
                return Handle(NAME, key, "never submitted")
            if job_id is None:
                job_id = self._sbatch(folder, intent, prepared.template.slurm or SlurmSettings(), lock)
            folder.write(_RECORD, {"job_id": job_id})
        return Handle(NAME, key, job_id)

    def find(self, key: str) -> Handle | None:
        folder = JobFolder.of(self._place.root, key)
        intent = folder.find_intent()
        job_id = self._find_job(folder, key, intent) if intent else None
        return Handle(NAME, key, job_id) if job_id else None

    def status(self, handle: Handle) -> JobStatus:
        folder = self._folder(handle)
        final = folder.find_final()
        if final:
            return final
        job_id = self._job_id(folder, handle)
        if job_id is None:
            return folder.keep_final(_unsubmitted(folder))
        return folder.keep_final(self._ask(job_id) or _read_script_status(folder))

    def wait(self, handle: Handle, timeout_s: float) -> JobStatus:
        pause = lambda left_s: time.sleep(min(self._poll_s, left_s))  # noqa: E731
        return wait_for_end(lambda: self.status(handle), pause, timeout_s)

    def logs(self, handle: Handle, offset: int = 0, *, follow: bool = True) -> Iterator[LogChunk]:
        log = self._folder(handle).log
        is_over = lambda: has_ended(lambda: self.status(handle))  # noqa: E731
        return follow_file(log, offset, is_over, follow=follow, poll_s=self._poll_s)

    def artefacts(self, handle: Handle, to: Path) -> list[Path]:
        return copy_results(self._folder(handle).out, to)

    def cancel(self, handle: Handle, timeout_s: float = 60.0) -> JobStatus:
        folder = self._folder(handle)
        with folder.submission():
            folder.mark_cancelled()
        job_id = self._job_id(folder, handle)
        if job_id and not self.status(handle).has_ended:
            self._commands.find(["scancel", job_id])
        return self.wait(handle, timeout_s)

    def _folder(self, handle: Handle) -> JobFolder:
        return JobFolder.of(self._place.root, handle.key)

    def _job_id(self, folder: JobFolder, handle: Handle) -> str | None:
        return _known_id(folder) or _number(handle.reference)

    def _find_job(self, folder: JobFolder, key: str, intent: Intent) -> str | None:
        return _known_id(folder) or self._find_by_name(key, intent)

    def _find_by_name(self, key: str, intent: Intent) -> str | None:
        """The controller forgets jobs after MinJobAge; where there is accounting, sacct does not."""
        queue = ["squeue", "--me", "--noheader", "--states=all", f"--name={job_name(key)}", "--format=%i|%k"]
        lines = self._commands.run(queue).splitlines()
        if not lines:
            past = ["sacct", "--noheader", "--parsable2", "--allocations", "--starttime=now-30days"]
            found = self._commands.try_run([*past, f"--name={job_name(key)}", "--format=JobIDRaw,Comment"])
            lines = found.splitlines()
        for line in sorted(lines, key=_leading_number):
            job_id, _, comment = line.partition("|")
            if comment.startswith("asap:") and comment != job_comment(intent):
                raise InputError("key", key, f"is the name of another job of yours, {job_id}; choose another")
            return job_id
        return None

    def _sbatch(self, folder: JobFolder, intent: Intent, settings: SlurmSettings, lock: int) -> str:
        script = folder.path / _SCRIPT
        write_whole(script, make_script(folder, intent))
        words = ["sbatch", *sbatch_options(folder, intent, settings), str(script)]
        answer = self._commands.run(words, pass_fds=[lock])
        job_id = _number(answer.strip().partition(";")[0])
        if job_id is None:
            raise LaunchError(f"sbatch gave no job id: {answer.strip()[:200]!r}")
        return job_id

    def _ask(self, job_id: str) -> JobStatus | None:
        line = self._commands.find(["scontrol", "--oneliner", "show", "job", job_id])
        if line.strip():
            return read_scontrol(line)
        words = ["sacct", f"--jobs={job_id}", "--noheader", "--parsable2", "--allocations"]
        lines = self._commands.try_run([*words, f"--format={SACCT_FIELDS}"]).splitlines()
        return read_sacct(lines[0]) if lines else None


def _known_id(folder: JobFolder) -> str | None:
    """Whoever holds the claim is the job, whatever was recorded."""
    recorded = folder.read(_RECORD)
    claimed = _number(_read_text(folder.path / CLAIM) or "")
    return claimed or (recorded["job_id"] if recorded else None)


def _unsubmitted(folder: JobFolder) -> JobStatus:
    if folder.is_cancelled:
        return JobStatus(State.CANCELLED, Cause.CANCELLED, detail="never submitted", source="folder")
    return JobStatus(State.QUEUED, detail="not submitted yet", source="folder")


def _read_script_status(folder: JobFolder) -> JobStatus:
    """Slurm has forgotten the job: what its script wrote down last, or nothing."""
    number = _number(_read_text(folder.path / EXIT_STATUS) or "")
    if number is None:
        detail = "neither scontrol nor sacct knows the job any more, and its script did not reach its end"
        return JobStatus(State.LOST, Cause.LOST, detail=detail, source="folder")
    status = int(number)
    return JobStatus(exit_state(status, None), Cause.EXIT, status, source="job script")


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except FileNotFoundError:
        return None


def _leading_number(line: str) -> int:
    return int(_number(line.partition("|")[0]) or 0)


def _number(text: str) -> str | None:
    return text if text.isascii() and text.isdigit() else None
