"""Which steps are profiled, what that costs, and what a capture leaves behind, however the training ends."""

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch

from asap_client.capture import Capture, CaptureSchedule, capture, find_summariser

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
