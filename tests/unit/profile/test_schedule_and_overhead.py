"""Which steps are profiled and what that costs."""

from pathlib import Path

import pytest

from asap_client.capture import CaptureSchedule, StepTimes, measure_overhead, read_overhead, write_overhead
from tools.errors import InputError
from tools.trace.record import UnreadableTraceError


def test_active_steps_follow_wait_and_warm_up() -> None:
    schedule = CaptureSchedule(wait=2, warmup=1, active=3)
    assert [step for step in range(10) if schedule.is_active(step)] == [3, 4, 5]


def test_the_first_step_and_warm_up_measure_nothing() -> None:
    schedule = CaptureSchedule(wait=2, warmup=1, active=3)
    assert [step for step in range(9) if schedule.is_plain(step)] == [1, 6, 7, 8]


@pytest.mark.parametrize("wrong", [{"wait": -1}, {"warmup": -1}, {"active": 0}])
def test_an_impossible_schedule_is_the_users_error(wrong: dict[str, int]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        CaptureSchedule(**wrong)


def test_overhead_compares_medians() -> None:
    overhead = measure_overhead(StepTimes(plain_s=[1.0, 1.0, 9.0], profiled_s=[1.1, 1.1, 1.1]))
    assert overhead.overhead_ratio == pytest.approx(0.1)


@pytest.mark.parametrize("times", [StepTimes(), StepTimes(plain_s=[1.0]), StepTimes(profiled_s=[1.0])])
def test_overhead_is_unknown_when_a_sort_of_step_is_missing(times: StepTimes) -> None:
    assert measure_overhead(times).overhead_ratio is None


def test_overhead_is_read_as_written(tmp_path: Path) -> None:
    times, path = StepTimes([1.0], [1.5]), tmp_path / "rank0.overhead.json"
    write_overhead(times, path)
    assert read_overhead(path) == measure_overhead(times)


def test_a_broken_overhead_file_is_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "rank0.overhead.json"
    path.write_text("{")
    with pytest.raises(UnreadableTraceError, match=r"rank0\.overhead"):
        read_overhead(path)
