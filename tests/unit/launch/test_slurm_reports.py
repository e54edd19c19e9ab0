"""Slurm's words in ours. The lines are those of Slurm 22.05."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.launch.slurm_commands import read_sacct, read_scontrol
from tools.launch.status import Cause, State

LINE = (
    "JobId=7 JobName=asap-k UserId=root(0) Priority=1 Account=(null) QOS=(null) JobState={state} "
    "Reason={reason} Dependency=(null) ExitCode={code} RunTime=00:00:01 StartTime=1794814180 "
    "EndTime=1794814181 ReqNodeList=(null) ExcNodeList=(null) NodeList=n[1-2] BatchHost=n1 "
    "Command=/data/job.sh WorkDir=/data JobState=COMPLETED ExitCode=0:0 Comment=asap:k:1 \n"
)


def line(state: str, code: str = "0:0", reason: str = "None") -> str:
    return LINE.format(state=state, code=code, reason=reason)


@pytest.mark.parametrize(
    ("state", "code", "reason", "expected"),
    [
        ("COMPLETED", "0:0", "None", (State.SUCCEEDED, Cause.EXIT, 0, None)),
        ("FAILED", "7:0", "NonZeroExitCode", (State.FAILED, Cause.EXIT, 7, None)),
        ("FAILED", "0:9", "RaisedSignal:9", (State.FAILED, Cause.EXIT, None, 9)),
        ("FAILED", "0:53", "JobLaunchFailure", (State.FAILED, Cause.START_FAILURE, None, 53)),
        ("TIMEOUT", "0:15", "TimeLimit", (State.FAILED, Cause.WALL_LIMIT, None, 15)),
        ("DEADLINE", "0:0", "None", (State.FAILED, Cause.WALL_LIMIT, 0, None)),
        ("OUT_OF_MEMORY", "0:125", "OutOfMemory", (State.FAILED, Cause.OUT_OF_MEMORY, None, 125)),
        ("NODE_FAIL", "1:0", "NodeDown", (State.FAILED, Cause.NODE_FAILURE, 1, None)),
        ("BOOT_FAIL", "1:0", "None", (State.FAILED, Cause.NODE_FAILURE, 1, None)),
        ("PREEMPTED", "0:15", "None", (State.FAILED, Cause.PREEMPTED, None, 15)),
        ("REVOKED", "0:0", "None", (State.FAILED, Cause.PREEMPTED, 0, None)),
        ("CANCELLED", "0:15", "None", (State.CANCELLED, Cause.CANCELLED, None, 15)),
        ("PENDING", "0:0", "Resources", (State.QUEUED, None, None, None)),
        ("CONFIGURING", "0:0", "None", (State.QUEUED, None, None, None)),
        ("REQUEUED", "0:0", "None", (State.QUEUED, None, None, None)),
        ("REQUEUE_HOLD", "0:0", "None", (State.QUEUED, None, None, None)),
        ("SPECIAL_EXIT", "0:0", "None", (State.QUEUED, None, None, None)),
        ("RUNNING", "0:0", "None", (State.RUNNING, None, None, None)),
        ("COMPLETING", "0:0", "None", (State.RUNNING, None, None, None)),
        ("SUSPENDED", "0:0", "None", (State.RUNNING, None, None, None)),
        ("SOMETHING_NEW", "0:0", "None", (State.RUNNING, None, None, None)),
    ],
)
def test_every_state_has_its_meaning(
    state: str, code: str, reason: str, expected: tuple[State, Cause | None, int | None, int | None]
) -> None:
    status = read_scontrol(line(state, code, reason))
    assert (status.state, status.cause, status.exit_status, status.signal) == expected
    assert status.detail.startswith(state)


def test_free_text_after_a_field_cannot_replace_it() -> None:
    status = read_scontrol(line("FAILED", "7:0"))
    assert (status.state, status.exit_status) == (State.FAILED, 7)


def test_nodes_and_times_are_read() -> None:
    status = read_scontrol(line("COMPLETED"))
    assert status.nodes == ("n[1-2]",)
    assert (status.started_unix_s, status.ended_unix_s) == (1794814180.0, 1794814181.0)
    assert read_scontrol(line("RUNNING")).ended_unix_s is None


def test_sacct_says_the_same() -> None:
    status = read_sacct("CANCELLED by 0|0:15|None|n1|1794814180|1794814181")
    assert (status.state, status.signal, status.source) == (State.CANCELLED, 15, "sacct")
    status = read_sacct("FAILED|3:0|NonZeroExitCode|n[1-2]|1794814180|1794814181")
    assert (status.state, status.exit_status, status.nodes) == (State.FAILED, 3, ("n[1-2]",))
    assert read_sacct("PENDING|0:0|None|None assigned|Unknown|Unknown").nodes == ()


@given(st.text())
def test_any_text_is_read_without_an_error(text: str) -> None:
    assert read_scontrol(text).state in State
    assert read_sacct(text).state in State
