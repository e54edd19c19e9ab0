"""Waiting through an engine's absence."""

import pytest

from tools.launch.status import JobStatus, LaunchError, State, has_ended, wait_for_end

RUNNING, DONE = JobStatus(State.RUNNING), JobStatus(State.SUCCEEDED)


def answers(*content: JobStatus | None) -> list[JobStatus | None]:
    """Last one first; None is a controller out of reach."""
    return list(reversed(content))


def ask(left: list[JobStatus | None]) -> JobStatus:
    answer = left.pop()
    if answer is None:
        raise LaunchError("cannot contact the controller")
    return answer


def test_a_controller_that_comes_back_is_waited_for() -> None:
    left, pauses = answers(RUNNING, None, None, RUNNING, DONE), list[float]()
    assert wait_for_end(lambda: ask(left), pauses.append, 60) == DONE
    assert len(pauses) == 4
    assert all(0 < pause <= 60 for pause in pauses)


def test_a_controller_that_stays_away_is_an_error_when_the_time_is_over() -> None:
    with pytest.raises(LaunchError):
        wait_for_end(lambda: ask(answers(None)), lambda left_s: None, 0)


def test_without_time_a_job_is_asked_once() -> None:
    assert wait_for_end(lambda: ask(answers(RUNNING)), lambda left_s: None, 0) == RUNNING


@pytest.mark.parametrize(("answer", "expected"), [(None, False), (RUNNING, False), (DONE, True)])
def test_a_job_out_of_reach_has_not_ended(answer: JobStatus | None, expected: bool) -> None:
    assert has_ended(lambda: ask(answers(answer))) is expected
