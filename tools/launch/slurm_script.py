"""The batch script of a job, and the options of sbatch. POSIX sh; every word of ours is quoted.

The script has a fence: the first job that starts it leaves its id in the shared folder, and any other job
with the same script ends at once. So a job that was submitted twice, against all care, still runs once.
"""

import shlex

from tools.launch.folder import Intent, JobFolder
from tools.launch.processes import MARK
from tools.launch.template import SlurmSettings

CLAIM, EXIT_STATUS = "claim", "exit_status"
FENCED = 75
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
