"""What a capture leaves behind, however the training ends."""

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from asap_client.capture import Capture, CaptureSchedule, capture  # noqa: E402


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
    monkeypatch.setattr(sys.modules["asap_client.capture"], "find_rank", lambda: next(ranks, 0))
    with capture(tmp_path, CaptureSchedule(0, 1, 9)) as profiler:
        train(profiler)
    assert [path.name for path in tmp_path.glob("*.json.gz")] == ["rank3.json.gz"]


def test_a_script_that_ends_before_its_profiled_steps_leaves_nothing(tmp_path: Path) -> None:
    with capture(tmp_path, CaptureSchedule(5, 1, 1)) as profiler:
        profiler.step()
    assert list(tmp_path.iterdir()) == []
