"""What scontrol and sacct say about a job, in ASAP's words. Exit codes come from here only, never from logs.

States: `man squeue` and `man sacct`, section JOB STATE CODES.
"""

import re

from tools.launch.status import Cause, JobStatus, State, exit_state

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
    # RUNNING, COMPLETING, SUSPENDED and the like, and words of later releases: an end is for ever, so only
    # what is surely one counts.
    return State.RUNNING, None


def _exit(code: str) -> tuple[int | None, int | None]:
    """Slurm writes `status:signal`."""
    found = re.fullmatch(r"(\d+):(\d+)", code)
    if not found:
        return None, None
    status, signal = int(found[1]), int(found[2])
    return (None, signal) if signal else (status, None)


def _time(text: str) -> float | None:
    """SLURM_TIME_FORMAT=%s makes every time a number; "Unknown" and "None" are none."""
    return float(text) if text.isdigit() else None
