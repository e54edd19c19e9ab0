"""A status as JSON, and waiting while the engine is unreachable."""

import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.launch.status import Cause, JobStatus, LaunchError, State, has_ended, wait_for_end

RUNNING, DONE = JobStatus(State.RUNNING), JobStatus(State.SUCCEEDED)
statuses = st.builds(
    JobStatus,
    state=st.sampled_from(State),
    cause=st.none() | st.sampled_from(Cause),
    exit_status=st.none() | st.integers(0, 255),
    signal=st.none() | st.integers(1, 64),
    detail=st.text(),
    nodes=st.lists(st.text()).map(tuple),
    ended_unix_s=st.none() | st.floats(allow_nan=False),
)


class Engine:
    """Answers in this order; None is a controller out of reach."""

    def __init__(self, *answers: JobStatus | None) -> None:
        self._answers = list(answers)

    def poll(self) -> JobStatus:
        answer = self._answers.pop(0)
        if answer is None:
            raise LaunchError("cannot contact the controller")
        return answer


@given(statuses)
def test_a_status_survives_json(status: JobStatus) -> None:
    assert JobStatus.from_json(json.dumps(asdict(status))) == status


def test_waiting_continues_while_the_controller_restarts() -> None:
    pauses: list[float] = []
    assert wait_for_end(Engine(RUNNING, None, None, RUNNING, DONE).poll, pauses.append, 60) == DONE
    assert len(pauses) == 4
    assert all(0 < pause <= 60 for pause in pauses)


def test_without_time_left_a_job_is_polled_once_and_an_error_is_raised() -> None:
    assert wait_for_end(Engine(RUNNING).poll, lambda left_s: None, 0) == RUNNING
    with pytest.raises(LaunchError):
        wait_for_end(Engine(None).poll, lambda left_s: None, 0)


@pytest.mark.parametrize(("answer", "expected"), [(None, False), (RUNNING, False), (DONE, True)])
def test_an_unreachable_job_has_not_ended(answer: JobStatus | None, expected: bool) -> None:
    assert has_ended(Engine(answer).poll) is expected
