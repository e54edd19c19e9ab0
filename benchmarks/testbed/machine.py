"""What this machine gives the testbed's ranks, as `cluster.overrides`: the catalogue describes another one.

    python -m benchmarks.testbed.machine OUT.json

Links with all ranks at once, as in training; arithmetic and memory with no more ranks than cores: how much
sharing the cores costs is for the calibration to learn. This is what one does with nccl-tests and a matrix
product on a cluster that no datasheet describes; no plan is run.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch import distributed as dist

from benchmarks.testbed.hosts import run_on_hosts
from benchmarks.testbed.workloads import HOSTS, MBIT, RANKS

REPEATS = 15
PRODUCT = 384
COPY_BYTES = 32 * 2**20
LARGE_BYTES, SMALL_BYTES = 4 * 2**20, 1024


def measure() -> dict[str, object]:
    """Called by every rank."""
    inside, across = _group(1), _group(RANKS // HOSTS)
    left, right = torch.randn(PRODUCT, PRODUCT), torch.randn(PRODUCT, PRODUCT)
    source, target = torch.empty(COPY_BYTES // 4), torch.empty(COPY_BYTES // 4)
    alone = min(RANKS, os.cpu_count() or 1)
    product_s = _seconds(lambda: [left @ right for _ in range(20)], min, alone) / 20
    copy_s = _seconds(lambda: target.copy_(source), min, alone)
    return {
        "peak_tflops": {"fp32": 2.0 * PRODUCT**3 / product_s / 1e12},
        "memory_bandwidth_gbytes_per_s": 2.0 * COPY_BYTES / copy_s / 1e9,
        "intra_node_gbytes_per_s_per_device": LARGE_BYTES / 2 / _seconds(_gather(inside, LARGE_BYTES)) / 1e9,
        "intra_node_latency_us": _seconds(_gather(inside, SMALL_BYTES)) * 1e6,
        "inter_node_latency_us": _seconds(_gather(across, SMALL_BYTES)) * 1e6,
    }


def _group(stride: int) -> dist.ProcessGroup:
    """This rank's group of two: neighbours for a stride of 1, one rank of each host for a longer one."""
    starts = [rank for rank in range(RANKS) if (rank // stride) % 2 == 0]
    groups: dict[int, dist.ProcessGroup] = {
        start: dist.new_group([start, start + stride]) for start in starts
    }
    rank = dist.get_rank()
    return groups[rank if rank in groups else rank - stride]


def _gather(group: dist.ProcessGroup, message_bytes: int) -> Callable[[], object]:
    whole, part = torch.empty(message_bytes // 4), torch.empty(message_bytes // 8)
    parts: list[Tensor] = list(whole.chunk(2))
    return lambda: dist.all_gather(parts, part, group=group)


def _seconds(
    work: Callable[[], object], choose: Callable[[list[float]], float] = statistics.median, ranks: int = RANKS
) -> float:
    """The best repeat for a peak, the median for a message; the mean over the ranks that work."""
    works = dist.get_rank() < ranks
    seconds = []
    for _ in range(REPEATS):
        dist.barrier()
        start_s = time.perf_counter()
        if works:
            work()
        seconds.append(time.perf_counter() - start_s)
    chosen = torch.tensor([choose(seconds) if works else 0.0], dtype=torch.float64)
    dist.all_reduce(chosen)
    return float(chosen) / ranks


def main() -> int:
    out = Path(sys.argv[1]).absolute()
    if not dist.is_torchelastic_launched():
        out.parent.mkdir(parents=True, exist_ok=True)
        return run_on_hosts(["benchmarks.testbed.machine", str(out)], HOSTS, RANKS, MBIT)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    measured = measure()
    if dist.get_rank() == 0:
        out.write_text(json.dumps(measured, indent=1) + "\n")
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
