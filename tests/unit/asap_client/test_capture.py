"""Which steps are profiled, what that costs, and what a capture leaves behind, however the training ends."""

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch

from asap_client.capture import (
    Capture,
    CaptureSchedule,
    StepTimes,
    capture,
    find_summariser,
    measure_overhead,
    read_overhead,
    write_overhead,
)
from asap_client.errors import CaptureError, InputError

capture_module = sys.modules["asap_client.capture"]


def train(profiler: Capture, end: BaseException | None = None) -> None:
    for _ in range(2):
        torch.ones(8).sum()
        profiler.step()
    if end:
        raise end


@pytest.mark.parametrize("end", [SystemExit(0), KeyboardInterrupt(), RuntimeError("later")])
def test_steps_that_were_profiled_are_summarised_however_the_script_ends(
    tmp_path: Path, end: BaseException
) -> None:
    with pytest.raises(type(end)), capture(tmp_path, CaptureSchedule(0, 1, 1), keep_traces=False) as profiler:
        train(profiler, end)
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == [
        "rank0.overhead.json",
        "rank0.summary.json",
    ]


def test_the_rank_is_that_of_the_steps_and_not_of_a_group_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script shorter than the schedule: the trace is written when it ends, without its process group."""
    ranks = iter([3, 3])
    monkeypatch.setattr(capture_module, "find_rank", lambda: next(ranks, 0))
    with capture(tmp_path, CaptureSchedule(0, 1, 9)) as profiler:
        train(profiler)
    assert [path.name for path in tmp_path.glob("*.json.gz")] == ["rank3.json.gz"]


def test_a_script_that_ends_before_its_profiled_steps_leaves_nothing(tmp_path: Path) -> None:
    with capture(tmp_path, CaptureSchedule(5, 1, 1)) as profiler:
        profiler.step()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", [None, "tools.of_a_training_repo:summarise"])
def test_without_the_server_the_raw_trace_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    """A training repo's own `tools` may even shadow the server's."""
    plugins = [EntryPoint("asap", value, "asap_client.summarise")] if value else []
    monkeypatch.setattr(capture_module, "entry_points", lambda group: plugins)
    with capture(tmp_path, CaptureSchedule(0, 1, 1), keep_traces=False) as profiler:
        train(profiler)
    names = sorted(path.name for path in tmp_path.rglob("*") if path.is_file())
    assert names == ["rank0.json.gz", "rank0.overhead.json"]


def test_the_server_registers_its_summariser() -> None:
    from tools.trace.folder import summarise_file

    assert find_summariser() is summarise_file


def test_without_torch_the_error_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(CaptureError, match="needs PyTorch in this environment"), capture(tmp_path):
        pass


def test_active_steps_follow_wait_and_warm_up_and_the_first_and_warm_up_measure_nothing() -> None:
    schedule = CaptureSchedule(wait=2, warmup=1, active=3)
    assert [step for step in range(10) if schedule.is_active(step)] == [3, 4, 5]
    assert [step for step in range(9) if schedule.is_plain(step)] == [1, 6, 7, 8]


@pytest.mark.parametrize("wrong", [{"wait": -1}, {"warmup": -1}, {"active": 0}])
def test_an_impossible_schedule_is_the_users_error(wrong: dict[str, int]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        CaptureSchedule(**wrong)


@pytest.mark.parametrize(
    ("times", "ratio"),
    [
        (StepTimes(plain_s=[1.0, 1.0, 9.0], profiled_s=[1.1, 1.1, 1.1]), 0.1),
        (StepTimes(), None),
        (StepTimes(plain_s=[1.0]), None),
        (StepTimes(profiled_s=[1.0]), None),
    ],
)
def test_overhead_compares_medians_of_both_kinds_of_step_and_is_read_as_written(
    tmp_path: Path, times: StepTimes, ratio: float | None
) -> None:
    write_overhead(times, tmp_path / "rank0.overhead.json")
    overhead = read_overhead(tmp_path / "rank0.overhead.json")
    assert overhead == measure_overhead(times)
    assert overhead.overhead_ratio == (ratio if ratio is None else pytest.approx(ratio))


def test_a_broken_overhead_file_is_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "rank0.overhead.json"
    path.write_text("{")
    with pytest.raises(CaptureError, match=r"rank0\.overhead"):
        read_overhead(path)
