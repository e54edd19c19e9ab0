"""Jobs on Slurm: the batch script with its fence, and the launcher.

Service and nodes share the jobs' folder.

Before sbatch the controller is queried for a job of this key's name, under a lock that an orphaned sbatch
still holds; the script's fence is the last resort. Status: scontrol, then sacct, then the script's mark.
"""

import json
import shlex
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tools.errors import InputError
from tools.launch.files import LogChunk, copy_results, follow_file, write_whole
from tools.launch.folder import JobFolder, Place, prepare
from tools.launch.launcher import Job
from tools.launch.slurm_commands import SACCT_FIELDS, SlurmCommands, read_sacct, read_scontrol
from tools.launch.status import (
    MARK,
    Cause,
    Handle,
    Intent,
    JobStatus,
    LaunchError,
    State,
    exit_state,
    has_ended,
    wait_for_end,
)
from tools.launch.template import SlurmSettings, Template

NAME = "slurm"
CLAIM, EXIT_STATUS = "claim", "exit_status"
_RECORD, _SCRIPT_FILE = "slurm.json", "job.sh"
FENCED = 75
"""Exit status of a second job for the same trial."""
RENDEZVOUS_WORD = "{rendezvous}"
_NO_WORKDIR = 72

_SCRIPT = """\
#!/bin/sh
# Trial {key}, made by ASAP from template {template}.
if ! (set -C; printf '%s' "$SLURM_JOB_ID" > {claim}) 2>/dev/null; then
    if [ "$(cat {claim})" != "$SLURM_JOB_ID" ]; then
        echo "asap: job $(cat {claim}) runs this trial already" >&2
        exit {fenced}
    fi
fi
{exports}
export SLURM_EXPORT_ENV=ALL
asap_host="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"
ASAP_RENDEZVOUS="$asap_host:$((20000 + SLURM_JOB_ID % 10000))"
cd {workdir} || exit {no_workdir}
{command}
status=$?
printf '%s' "$status" > {exit_status}
exit "$status"
"""


def make_script(folder: JobFolder, intent: Intent) -> str:
    environment = {**intent.environment, MARK: intent.mark}
    return _SCRIPT.format(
        key=intent.key,
        template=intent.template,
        claim=shlex.quote(str(folder.path / CLAIM)),
        exit_status=shlex.quote(str(folder.path / EXIT_STATUS)),
        fenced=FENCED,
        exports="\n".join(f"export {name}={shlex.quote(value)}" for name, value in environment.items()),
        workdir=shlex.quote(intent.workdir),
        no_workdir=_NO_WORKDIR,
        command=" ".join(map(_word, intent.command)),
    )


def _word(word: str) -> str:
    """Only the batch script can know where the nodes meet; everything else is known and quoted."""
    return '"$ASAP_RENDEZVOUS"' if word == RENDEZVOUS_WORD else shlex.quote(word)


def job_name(key: str) -> str:
    return f"asap-{key}"


def job_comment(intent: Intent) -> str:
    return f"asap:{intent.key}:{intent.digest[:16]}"


def sbatch_options(folder: JobFolder, intent: Intent, settings: SlurmSettings) -> list[str]:
    """Without a script's #SBATCH lines nothing needs a second kind of quoting."""
    minutes = -(-intent.wall_s // 60)
    options = {
        "job-name": job_name(intent.key),
        "comment": job_comment(intent),
        "nodes": str(intent.nnodes),
        "ntasks-per-node": "1",
        "time": str(minutes),
        # %% is sbatch's own way to write a percent sign in a file name.
        "output": str(folder.log).replace("%", "%%"),
        "open-mode": "append",
        "chdir": str(folder.path),
        **_settings(settings, intent.nproc),
    }
    flags = ["--parsable", "--no-requeue", *(["--exclusive"] if settings.exclusive else [])]
    return [*flags, *(f"--{name}={value}" for name, value in options.items())]


def _settings(settings: SlurmSettings, nproc: int) -> dict[str, str]:
    names = ("partition", "account", "qos", "reservation", "constraint")
    options = {name: value for name in names if (value := getattr(settings, name))}
    if settings.gres:
        options["gres"] = f"{settings.gres}:{nproc}"
    if settings.cpus_per_node:
        options["cpus-per-task"] = str(settings.cpus_per_node)
    if settings.memory_mib_per_node:
        options["mem"] = f"{settings.memory_mib_per_node}M"
    return options


class SlurmLauncher:
    """`environment` must have PATH, and SLURM_CONF if the configuration is not in the usual place."""

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
            folder.write(_RECORD, job_id)
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
        return folder.keep_final(self._query(job_id) or _read_script_status(folder))

    def wait(self, handle: Handle, timeout_s: float) -> JobStatus:
        def pause(left_s: float) -> None:
            time.sleep(min(self._poll_s, left_s))

        return wait_for_end(lambda: self.status(handle), pause, timeout_s)

    def logs(self, handle: Handle, offset: int = 0, *, follow: bool = True) -> Iterator[LogChunk]:
        log = self._folder(handle).log

        def is_over() -> bool:
            return has_ended(lambda: self.status(handle))

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
        """The controller forgets jobs after MinJobAge; with accounting, sacct does not."""
        queue = ["squeue", "--me", "--noheader", "--states=all", f"--name={job_name(key)}", "--format=%i|%k"]
        lines = self._commands.run(queue).splitlines()
        if not lines:
            past = ["sacct", "--noheader", "--parsable2", "--allocations", "--starttime=now-30days"]
            past += [f"--name={job_name(key)}", "--format=JobIDRaw,Comment"]
            lines = self._commands.try_run(past).splitlines()
        for line in sorted(lines, key=_leading_number):
            job_id, _, comment = line.partition("|")
            if comment.startswith("asap:") and comment != job_comment(intent):
                raise InputError("key", key, f"is the name of another job of yours, {job_id}; choose another")
            return job_id
        return None

    def _sbatch(self, folder: JobFolder, intent: Intent, settings: SlurmSettings, lock: int) -> str:
        script = folder.path / _SCRIPT_FILE
        write_whole(script, make_script(folder, intent))
        words = ["sbatch", *sbatch_options(folder, intent, settings), str(script)]
        answer = self._commands.run(words, pass_fds=[lock])
        job_id = _number(answer.strip().partition(";")[0])
        if job_id is None:
            raise LaunchError(f"sbatch gave no job id: {answer.strip()[:200]!r}")
        return job_id

    def _query(self, job_id: str) -> JobStatus | None:
        line = self._commands.find(["scontrol", "--oneliner", "show", "job", job_id])
        if line.strip():
            return read_scontrol(line)
        words = ["sacct", f"--jobs={job_id}", "--noheader", "--parsable2", "--allocations"]
        lines = self._commands.try_run([*words, f"--format={SACCT_FIELDS}"]).splitlines()
        return read_sacct(lines[0]) if lines else None


def _known_id(folder: JobFolder) -> str | None:
    """The job that holds the claim counts, whatever was recorded."""
    recorded = folder.read(_RECORD)
    claimed = _number(_read_text(folder.path / CLAIM) or "")
    return claimed or (json.loads(recorded) if recorded else None)


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
