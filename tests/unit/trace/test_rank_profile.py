"""Devices found by the name in the trace, and peak memory."""

import numpy as np
import pytest

from tools.trace.rank_profile import find_device, profile_memory
from tools.trace.record import MemoryCounter


def _counter(allocated: list[int], is_accelerator: bool = True) -> MemoryCounter:
    sizes = np.array(allocated, dtype=np.int64)
    return MemoryCounter(np.arange(len(sizes), dtype=np.int64) * 10, sizes, sizes * 2, is_accelerator)


def test_the_peak_survives_the_thinning_of_the_timeline_and_the_accelerator_comes_before_the_host() -> None:
    sizes = [5] * 5000
    sizes[3333] = 999
    memory = profile_memory((_counter(sizes), _counter([9999], is_accelerator=False)))
    assert memory is not None
    assert len(memory.allocated_bytes) <= 200
    assert max(memory.allocated_bytes) == memory.peak_allocated_bytes == 999
    assert profile_memory(()) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm-80gb"),
        ("Tesla V100-SXM2-32GB", "v100-sxm-32gb"),
        ("AMD Instinct MI300X", "mi300x"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA H200", "h200-sxm-141gb"),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40gb"),
        ("Quadro 4000", None),
        (None, None),
    ],
)
def test_devices_are_found_by_the_name_in_the_trace(name: str | None, expected: str | None) -> None:
    device = find_device(name)
    assert (device.name if device else None) == expected
