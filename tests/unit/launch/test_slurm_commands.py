"""What scontrol and sacct report, in ASAP's vocabulary. The lines are those of Slurm 22.05."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.launch.slurm_commands import read_sacct, read_scontrol
from tools.launch.status import FailureCause, JobState

# Free text at the end repeats fields and must not replace them.
LINE = (
    "JobId=7 JobName=asap-k UserId=root(0) Priority=1 Account=(null) QOS=(null) JobState={} "
    "Reason={} Dependency=(null) ExitCode={} RunTime=00:00:01 StartTime=1794814180 "
    "EndTime=1794814181 ReqNodeList=(null) ExcNodeList=(null) NodeList=n[1-2] BatchHost=n1 "
    "Command=/data/job.sh WorkDir=/data JobState=COMPLETED ExitCode=0:0 Comment=asap:k:1 \n"
)
ENDS = [
    ("COMPLETED", "0:0", "None", (JobState.SUCCEEDED, FailureCause.EXIT, 0, None)),
    ("FAILED", "7:0", "NonZeroExitCode", (JobState.FAILED, FailureCause.EXIT, 7, None)),
    ("FAILED", "0:9", "RaisedSignal:9", (JobState.FAILED, FailureCause.EXIT, None, 9)),
    ("FAILED", "0:53", "JobLaunchFailure", (JobState.FAILED, FailureCause.START_FAILURE, None, 53)),
    ("TIMEOUT", "0:15", "TimeLimit", (JobState.FAILED, FailureCause.WALL_LIMIT, None, 15)),
    ("DEADLINE", "0:0", "None", (JobState.FAILED, FailureCause.WALL_LIMIT, 0, None)),
    ("OUT_OF_MEMORY", "0:125", "OutOfMemory", (JobState.FAILED, FailureCause.OUT_OF_MEMORY, None, 125)),
    ("NODE_FAIL", "1:0", "NodeDown", (JobState.FAILED, FailureCause.NODE_FAILURE, 1, None)),
    ("BOOT_FAIL", "1:0", "None", (JobState.FAILED, FailureCause.NODE_FAILURE, 1, None)),
    ("PREEMPTED", "0:15", "None", (JobState.FAILED, FailureCause.PREEMPTED, None, 15)),
    ("REVOKED", "0:0", "None", (JobState.FAILED, FailureCause.PREEMPTED, 0, None)),
    ("CANCELLED", "0:15", "None", (JobState.CANCELLED, FailureCause.CANCELLED, None, 15)),
]
UNDER_WAY = {
    JobState.QUEUED: ["PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"],
    JobState.RUNNING: ["RUNNING", "COMPLETING", "SUSPENDED", "SOMETHING_NEW"],
}


@pytest.mark.parametrize(("name", "code", "reason", "expected"), ENDS)
def test_every_end_has_its_meaning(
    name: str, code: str, reason: str, expected: tuple[JobState, FailureCause, int | None, int | None]
) -> None:
    status = read_scontrol(LINE.format(name, reason, code))
    assert (status.state, status.cause, status.exit_status, status.signal) == expected
    assert status.detail.startswith(name)
    assert status.nodes == ("n[1-2]",)
    assert (status.started_unix_s, status.ended_unix_s) == (1794814180.0, 1794814181.0)


@pytest.mark.parametrize(
    ("state", "name"), [(state, name) for state, names in UNDER_WAY.items() for name in names]
)
def test_every_state_before_the_end_has_its_meaning(state: JobState, name: str) -> None:
    status = read_scontrol(LINE.format(name, "Resources", "0:0"))
    assert (status.state, status.cause, status.exit_status, status.signal) == (state, None, None, None)
    assert status.detail.startswith(name)
    assert status.ended_unix_s is None


@given(st.text())
def test_any_text_is_read_without_an_error(text: str) -> None:
    assert read_scontrol(text).state in JobState
    assert read_sacct(text).state in JobState
