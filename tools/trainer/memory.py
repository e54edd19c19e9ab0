"""Peak memory of this process during the measured steps, and how it was measured.

On a GPU it is what PyTorch's allocator held at most. The CPU allocator keeps no count: there it is the
largest resident set the kernel saw (`VmHWM`), with the interpreter and the libraries in it, which is why
the resident set before the model was built stands beside it. What malloc keeps after a free counts too.
"""

import resource
from dataclasses import dataclass
from pathlib import Path

import torch

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
"""Linux, Documentation/filesystems/proc.rst: writing 5 to clear_refs resets the peak resident set."""


@dataclass(frozen=True)
class PeakMemory:
    peak_bytes: int
    before_model_bytes: int
    method: str


def held_bytes(device: torch.device) -> int:
    """What the process (CPU) or the allocator (GPU) holds now."""
    if device.type == "cuda":
        return int(torch.cuda.memory_allocated(device))
    return _status_bytes("VmRSS") or _largest_ever_bytes()


def reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        _CLEAR.write_text(_RESET_PEAK)
    except OSError:
        return


def read_peak(device: torch.device, before_model_bytes: int) -> PeakMemory:
    if device.type == "cuda":
        peak = int(torch.cuda.max_memory_allocated(device))
        return PeakMemory(peak, before_model_bytes, "torch.cuda.max_memory_allocated")
    peak = _status_bytes("VmHWM")
    if peak:
        method = "VmHWM of the process, reset before the measured steps where the kernel lets it"
        return PeakMemory(peak, before_model_bytes, method)
    return PeakMemory(_largest_ever_bytes(), before_model_bytes, "getrusage ru_maxrss since the start")


def _status_bytes(name: str) -> int:
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), 0)


def _largest_ever_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
