"""Peak memory, and bubbles between pipeline stages."""

import numpy as np
import pytest

from tools.trace.alignment import analyse_pipeline
from tools.trace.breakdown import Breakdown
from tools.trace.rank_profile import RankProfile, profile_memory
from tools.trace.record import MemoryCounter


def _counter(allocated: list[int], is_accelerator: bool = True) -> MemoryCounter:
    sizes = np.array(allocated, dtype=np.int64)
    return MemoryCounter(np.arange(len(sizes), dtype=np.int64) * 10, sizes, sizes * 2, is_accelerator)


def test_the_peak_survives_the_thinning_of_the_timeline() -> None:
    sizes = [5] * 5000
    sizes[3333] = 999
    memory = profile_memory((_counter(sizes),))
    assert memory is not None
    assert len(memory.allocated_bytes) <= 200
    assert max(memory.allocated_bytes) == memory.peak_allocated_bytes == 999


def test_the_accelerator_is_preferred_to_the_host() -> None:
    memory = profile_memory((_counter([10]), _counter([9999], is_accelerator=False)))
    assert memory is not None
    assert memory.peak_allocated_bytes == 10


def test_no_events_give_no_profile() -> None:
    assert profile_memory(()) is None


def _stage(rank: int, compute_ns: int, exchanged_ns: int | None) -> RankProfile:
    terms = Breakdown(compute_ns=compute_ns, total_ns=100)
    exposed = {} if exchanged_ns is None else {"send_recv": exchanged_ns}
    return RankProfile(file="f", rank=rank, basis="device", breakdown=terms, exposed_by_kind_ns=exposed)


def test_bubble_and_imbalance_are_over_all_stages() -> None:
    result = analyse_pipeline([_stage(0, 60, 10), _stage(1, 20, 50)])
    assert result is not None
    assert result.bubble_ratio == pytest.approx(0.3)
    assert result.imbalance_ratio == pytest.approx(0.5)
    assert result.slowest_rank == 0


def test_without_send_and_receive_there_is_no_pipeline() -> None:
    assert analyse_pipeline([_stage(0, 60, None), _stage(1, 20, None)]) is None
