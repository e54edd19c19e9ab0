"""Slurm's commands, run without a shell, and what scontrol and sacct report about a job.

States: `man squeue` and `man sacct`, section JOB STATE CODES. Exit codes come from here only, never from
logs.
"""

import re
import subprocess
from collections.abc import Mapping, Sequence

from tools.launch.status import Cause, JobStatus, LaunchError, State, exit_state

_TIMEOUT_S = 60.0
_UNKNOWN_JOB = "Invalid job id specified"


class SlurmCommands:
    """`environment` is all that the commands see, and what sbatch hands on to jobs."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._query_environment = {**environment, "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}

    def run(self, words: Sequence[str], pass_fds: Sequence[int] = ()) -> str:
        """Standard output; raises LaunchError with the command's own words when it fails."""
        return _output(words, self._call(words, pass_fds))

    def find(self, words: Sequence[str]) -> str:
        """As `run`, but empty if Slurm does not know the job any more."""
        result = self._call(words)
        is_unknown = result.returncode and _UNKNOWN_JOB in result.stderr
        return "" if is_unknown else _output(words, result)

    def try_run(self, words: Sequence[str]) -> str:
        """Empty if the command fails: for sacct, which not every cluster can answer."""
        result = self._call(words)
        return "" if result.returncode else result.stdout

    def _call(self, words: Sequence[str], pass_fds: Sequence[int] = ()) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                words,
                env=self._environment if words[0] == "sbatch" else self._query_environment,
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
        raise LaunchError(f"{words[0]} failed: {_error_text(result)}")
    return result.stdout


def _error_text(result: subprocess.CompletedProcess[str]) -> str:
    text = (result.stderr.strip() or result.stdout.strip() or f"exit status {result.returncode}")[-500:]
    return " ".join(text.split())


_WAITING = {
    "PENDING",
    "CONFIGURING",
    "REQUEUED",
    "REQUEUE_FED",
    "REQUEUE_HOLD",
    "RESV_DEL_HOLD",
    "SPECIAL_EXIT",
}
_ENDS = {
    "CANCELLED": (State.CANCELLED, Cause.CANCELLED),
    "TIMEOUT": (State.FAILED, Cause.WALL_LIMIT),
    "DEADLINE": (State.FAILED, Cause.WALL_LIMIT),
    "OUT_OF_MEMORY": (State.FAILED, Cause.OUT_OF_MEMORY),
    "NODE_FAIL": (State.FAILED, Cause.NODE_FAILURE),
    "BOOT_FAIL": (State.FAILED, Cause.NODE_FAILURE),
    "PREEMPTED": (State.FAILED, Cause.PREEMPTED),
    "REVOKED": (State.FAILED, Cause.PREEMPTED),
}
_FIELD = re.compile(r"(?:^|\s)(JobState|ExitCode|Reason|NodeList|StartTime|EndTime)=(\S*)")
_LAUNCH_FAILED = "JobLaunchFailure"
SACCT_FIELDS = "State,ExitCode,Reason,NodeList,Start,End"


def read_scontrol(line: str) -> JobStatus:
    """One job of `scontrol --oneliner show job`. A field's first place counts: later ones hold free text."""
    fields: dict[str, str] = {}
    for name, value in _FIELD.findall(line):
        fields.setdefault(name, value)
    times = (fields.get("StartTime", ""), fields.get("EndTime", ""))
    return _status(
        fields.get("JobState", ""),
        fields.get("ExitCode", ""),
        fields.get("Reason", ""),
        fields.get("NodeList", ""),
        times,
        "scontrol",
    )


def read_sacct(line: str) -> JobStatus:
    """One line of `sacct --parsable2` with SACCT_FIELDS."""
    values = [*line.split("|"), *[""] * 6]
    state, exit_code, reason, nodes, start, end = values[:6]
    return _status(state, exit_code, reason, nodes, (start, end), "sacct")


def _status(
    word: str, exit_code: str, reason: str, nodes: str, times: tuple[str, str], source: str
) -> JobStatus:
    # sacct: "CANCELLED by 1000"; scontrol: "CANCELLED", with flags after a "+".
    name = re.split(r"[ +]", word, maxsplit=1)[0]
    state, cause = _meaning(name, reason, exit_code)
    exit_status, signal = _exit(exit_code) if state not in (State.QUEUED, State.RUNNING) else (None, None)
    return JobStatus(
        state,
        cause,
        exit_status,
        signal,
        detail=f"{name}, {reason}" if reason not in ("", "None") else name,
        source=source,
        nodes=(nodes,) if nodes and nodes not in ("(null)", "None assigned") else (),
        started_unix_s=_time(times[0]),
        ended_unix_s=_time(times[1]) if cause else None,
    )


def _meaning(name: str, reason: str, exit_code: str) -> tuple[State, Cause | None]:
    if name in _ENDS:
        return _ENDS[name]
    if name in _WAITING:
        return State.QUEUED, None
    if reason == _LAUNCH_FAILED:
        return State.FAILED, Cause.START_FAILURE
    if name in ("COMPLETED", "FAILED"):
        # A job is COMPLETED only with exit code zero, so the two agree.
        return exit_state(*_exit(exit_code)), Cause.EXIT
    # RUNNING, COMPLETING, SUSPENDED and the like, and states of later releases: an end is final, so
    # only a certain one counts.
    return State.RUNNING, None


def _exit(code: str) -> tuple[int | None, int | None]:
    """Slurm writes `status:signal`."""
    match = re.fullmatch(r"(\d+):(\d+)", code)
    if not match:
        return None, None
    status, signal = int(match[1]), int(match[2])
    return (None, signal) if signal else (status, None)


def _time(text: str) -> float | None:
    """SLURM_TIME_FORMAT=%s makes every time a number; "Unknown" and "None" are none."""
    return float(text) if text.isdigit() else None
