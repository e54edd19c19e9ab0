"""Jobs on Slurm: the batch script with its fence, and the launcher.

Service and nodes share the jobs' folder.

Before sbatch the controller is queried for a job of this key's name, under a lock that an orphaned sbatch
still holds; the script's fence is the last resort. Status: scontrol, then sacct, then the script's mark.
"""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path

from tools.errors import InputError
from tools.launch.folder import JobFolder, write_whole
from tools.launch.launcher import Job, Launcher
from tools.launch.slurm_commands import SACCT_FIELDS, SlurmCommands, read_sacct, read_scontrol
from tools.launch.status import MARK, Handle, Intent, JobState, JobStatus, LaunchError
from tools.launch.template import SlurmSettings, Template

FENCED = 75
"""Exit status of a second job for the same trial."""
_CLAIM, _EXIT_STATUS, _RECORD, _SCRIPT_FILE = "claim", "exit_status", "slurm.json", "job.sh"
_RENDEZVOUS = "{rendezvous}"
_NO_WORKDIR = 72
_PLAIN_OPTIONS = ("partition", "account", "qos", "reservation", "constraint")
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
    # Only the batch script can know where the nodes meet; everything else is known and quoted.
    words = ('"$ASAP_RENDEZVOUS"' if word == _RENDEZVOUS else shlex.quote(word) for word in intent.command)
    return _SCRIPT.format(
        key=intent.key,
        template=intent.template,
        claim=shlex.quote(str(folder.path / _CLAIM)),
        exit_status=shlex.quote(str(folder.path / _EXIT_STATUS)),
        fenced=FENCED,
        exports="\n".join(f"export {name}={shlex.quote(value)}" for name, value in environment.items()),
        workdir=shlex.quote(intent.workdir),
        no_workdir=_NO_WORKDIR,
        command=" ".join(words),
    )


def sbatch_options(folder: JobFolder, intent: Intent, settings: SlurmSettings) -> list[str]:
    """Without a script's #SBATCH lines nothing needs a second kind of quoting."""
    options = {
        "job-name": _job_name(intent.key),
        "comment": _job_comment(intent),
        "nodes": str(intent.nnodes),
        "ntasks-per-node": "1",
        "time": str(-(-intent.wall_s // 60)),
        # %% is sbatch's own way to write a percent sign in a file name.
        "output": str(folder.log).replace("%", "%%"),
        "open-mode": "append",
        "chdir": str(folder.path),
        **{name: getattr(settings, name) for name in _PLAIN_OPTIONS},
        "gres": f"{settings.gres}:{intent.nproc}" if settings.gres else None,
        "cpus-per-task": settings.cpus_per_node,
        "mem": f"{settings.memory_mib_per_node}M" if settings.memory_mib_per_node else None,
    }
    flags = ["--parsable", "--no-requeue", *(["--exclusive"] if settings.exclusive else [])]
    return [*flags, *(f"--{name}={value}" for name, value in options.items() if value)]


def _job_name(key: str) -> str:
    return f"asap-{key}"


def _job_comment(intent: Intent) -> str:
    return f"asap:{intent.key}:{intent.digest[:16]}"


class SlurmLauncher(Launcher):
    """`environment` must have PATH, and SLURM_CONF if the configuration is not in the usual place."""

    name = "slurm"
    rendezvous = _RENDEZVOUS

    def __init__(
        self,
        root: Path,
        templates: Mapping[str, Template],
        environment: Mapping[str, str],
        poll_s: float = 5.0,
    ) -> None:
        super().__init__(root, templates, {}, poll_s)
        self._commands = SlurmCommands(environment)

    def submit(self, key: str, job: Job) -> Handle:
        prepared = self._prepare(key, job)
        folder, intent = prepared.folder, prepared.intent
        with folder.submission() as lock:
            job_id = self._find_job(folder, intent)
            if job_id is None and folder.is_cancelled:
                return Handle(self.name, key, "never submitted")
            if job_id is None:
                script = folder.path / _SCRIPT_FILE
                write_whole(script, make_script(folder, intent))
                options = sbatch_options(folder, intent, prepared.template.slurm or SlurmSettings())
                answer = self._commands.run(["sbatch", *options, str(script)], pass_fds=[lock]).strip()
                job_id = _number(answer.partition(";")[0])
                if job_id is None:
                    raise LaunchError(f"sbatch gave no job id: {answer[:200]!r}")
            folder.write(_RECORD, job_id)
        return Handle(self.name, key, job_id)

    def find(self, key: str) -> Handle | None:
        folder = self._folder(key)
        intent = folder.find_intent()
        job_id = self._find_job(folder, intent) if intent else None
        return Handle(self.name, key, job_id) if job_id else None

    def _find_job(self, folder: JobFolder, intent: Intent) -> str | None:
        """The controller forgets jobs after MinJobAge; with accounting, sacct does not."""
        if known := _known_id(folder):
            return known
        name = f"--name={_job_name(intent.key)}"
        queue = ["squeue", "--me", "--noheader", "--states=all", name, "--format=%i|%k"]
        lines = self._commands.run(queue).splitlines()
        if not lines:
            past = ["sacct", "--noheader", "--parsable2", "--allocations", "--starttime=now-30days"]
            lines = self._commands.try_run([*past, name, "--format=JobIDRaw,Comment"]).splitlines()
        if not lines:
            return None
        jobs = [line.partition("|") for line in lines]
        job_id, _, comment = min(jobs, key=lambda job: int(_number(job[0]) or 0))
        if comment.startswith("asap:") and comment != _job_comment(intent):
            taken = f"is the name of another job of yours, {job_id}; choose another"
            raise InputError("key", intent.key, taken)
        return job_id

    def _query(self, folder: JobFolder, handle: Handle) -> JobStatus:
        job_id = _known_id(folder) or _number(handle.reference)
        if job_id is None and folder.is_cancelled:
            return JobStatus.cancelled("never submitted")
        if job_id is None:
            return JobStatus(JobState.QUEUED, detail="not submitted yet", source="folder")
        line = self._commands.find(["scontrol", "--oneliner", "show", "job", job_id])
        if line.strip():
            return read_scontrol(line)
        words = ["sacct", f"--jobs={job_id}", "--noheader", "--parsable2", "--allocations"]
        lines = self._commands.try_run([*words, f"--format={SACCT_FIELDS}"]).splitlines()
        if lines:
            return read_sacct(lines[0])
        # Slurm has forgotten the job: what its script wrote down last, or nothing.
        if number := _number(folder.read(_EXIT_STATUS)):
            return JobStatus.exited(int(number), None, source="job script")
        return JobStatus.lost(
            "neither scontrol nor sacct knows the job any more, and its script did not reach its end"
        )

    def _end(self, handle: Handle) -> None:
        if job_id := _known_id(self._folder(handle.key)) or _number(handle.reference):
            self._commands.find(["scancel", job_id])


def _known_id(folder: JobFolder) -> str | None:
    """The job that holds the claim counts, whatever was recorded."""
    recorded = folder.read(_RECORD)
    return _number(folder.read(_CLAIM)) or (json.loads(recorded) if recorded else None)


def _number(text: str | None) -> str | None:
    return text if text and text.isascii() and text.isdigit() else None
