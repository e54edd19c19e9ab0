"""Slurm's commands, run without a shell, and what scontrol and sacct report about a job.

States: `man squeue` and `man sacct`, section JOB STATE CODES. Exit codes come from here only, never from
logs.
"""

import re
import subprocess
from collections.abc import Mapping, Sequence

from tools.launch.status import FailureCause, JobState, JobStatus, LaunchError

SACCT_FIELDS = "State,ExitCode,Reason,NodeList,Start,End"
_SCONTROL_FIELDS = ("JobState", "ExitCode", "Reason", "NodeList", "StartTime", "EndTime")
_FIELD = re.compile(rf"(?:^|\s)({'|'.join(_SCONTROL_FIELDS)})=(\S*)")
_TIMEOUT_S = 60.0
_UNKNOWN_JOB = "Invalid job id specified"
_LAUNCH_FAILED = "JobLaunchFailure"
_WAITING = {
    *("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED"),
    *("REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"),
}
_ENDS = {
    "CANCELLED": (JobState.CANCELLED, FailureCause.CANCELLED),
    "TIMEOUT": (JobState.FAILED, FailureCause.WALL_LIMIT),
    "DEADLINE": (JobState.FAILED, FailureCause.WALL_LIMIT),
    "OUT_OF_MEMORY": (JobState.FAILED, FailureCause.OUT_OF_MEMORY),
    "NODE_FAIL": (JobState.FAILED, FailureCause.NODE_FAILURE),
    "BOOT_FAIL": (JobState.FAILED, FailureCause.NODE_FAILURE),
    "PREEMPTED": (JobState.FAILED, FailureCause.PREEMPTED),
    "REVOKED": (JobState.FAILED, FailureCause.PREEMPTED),
}


class SlurmCommands:
    """`environment` is all that the commands see, and what sbatch hands on to jobs."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)

    def run(self, words: Sequence[str], pass_fds: Sequence[int] = ()) -> str:
        """Standard output; raises LaunchError with the command's own words when it fails."""
        return _output(words, self._call(words, pass_fds))

    def find(self, words: Sequence[str]) -> str:
        """As `run`, but empty if Slurm does not know the job any more."""
        result = self._call(words)
        return "" if result.returncode and _UNKNOWN_JOB in result.stderr else _output(words, result)

    def try_run(self, words: Sequence[str]) -> str:
        """Empty if the command fails: for sacct, which not every cluster can answer."""
        result = self._call(words)
        return "" if result.returncode else result.stdout

    def _call(self, words: Sequence[str], pass_fds: Sequence[int] = ()) -> subprocess.CompletedProcess[str]:
        queried = {} if words[0] == "sbatch" else {"LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}
        try:
            return subprocess.run(
                words,
                env={**self._environment, **queried},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TIMEOUT_S,
                pass_fds=pass_fds,
                check=False,
            )
        except FileNotFoundError:
            raise LaunchError(f"{words[0]} is not installed, or not on the launcher's PATH") from None
        except subprocess.TimeoutExpired:
            raise LaunchError(f"{words[0]} did not answer within {_TIMEOUT_S:g} s") from None


def _output(words: Sequence[str], result: subprocess.CompletedProcess[str]) -> str:
    if result.returncode:
        text = result.stderr.strip() or result.stdout.strip() or f"exit status {result.returncode}"
        raise LaunchError(f"{words[0]} failed: {' '.join(text[-500:].split())}")
    return result.stdout


def read_scontrol(line: str) -> JobStatus:
    """One job of `scontrol --oneliner show job`. A field's first place counts: later ones hold free text."""
    fields = dict(reversed(_FIELD.findall(line)))
    return _status([fields.get(name, "") for name in _SCONTROL_FIELDS], "scontrol")


def read_sacct(line: str) -> JobStatus:
    """One line of `sacct --parsable2` with SACCT_FIELDS."""
    return _status([*line.split("|"), *[""] * 6][:6], "sacct")


def _status(values: Sequence[str], source: str) -> JobStatus:
    word, exit_code, reason, nodes, *times = values
    # sacct: "CANCELLED by 1000"; scontrol: "CANCELLED", with flags after a "+".
    name = re.split(r"[ +]", word, maxsplit=1)[0]
    exit_status = signal = None
    if match := re.fullmatch(r"(\d+):(\d+)", exit_code):  # status:signal
        exit_status, signal = (None, int(match[2])) if int(match[2]) else (int(match[1]), None)
    exited = JobStatus.exited(exit_status, signal, source)
    state: JobState
    cause: FailureCause | None
    if name in _ENDS:
        state, cause = _ENDS[name]
    elif name in _WAITING:
        state, cause = JobState.QUEUED, None
    elif reason == _LAUNCH_FAILED:
        state, cause = JobState.FAILED, FailureCause.START_FAILURE
    elif name in ("COMPLETED", "FAILED"):
        # A job is COMPLETED only with exit code zero, so the two agree.
        state, cause = exited.state, exited.cause
    else:
        # RUNNING, COMPLETING, SUSPENDED and the like, and states of later releases: an end is final, so
        # only a certain one counts.
        state, cause = JobState.RUNNING, None
    # SLURM_TIME_FORMAT=%s makes every time a number; "Unknown" and "None" are none.
    started_s, ended_s = (float(text) if text.isdecimal() else None for text in times)
    return JobStatus(
        state,
        cause,
        exit_status if cause else None,
        signal if cause else None,
        detail=f"{name}, {reason}" if reason not in ("", "None") else name,
        source=source,
        nodes=(nodes,) if nodes and nodes not in ("(null)", "None assigned") else (),
        started_unix_s=started_s,
        ended_unix_s=ended_s if cause else None,
    )
