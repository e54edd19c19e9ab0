"""Texts by which programs, PyTorch, NCCL, gloo, XLA, Slurm and the kernel announce why they fail.

Ordered by what is the cause of what: one rank out of memory makes its peers lose their connections, so the
first kind of the table that is found wins. Every pattern runs in linear time on a line of bounded length.
"""

import re
from enum import StrEnum


class FailureKind(StrEnum):
    OUT_OF_MEMORY = "out_of_memory"
    HANG = "hang"
    COMMUNICATION_TIMEOUT = "communication_timeout"
    NODE_DOWN = "node_down"
    NUMERICS = "numerics"
    BAD_CONFIGURATION = "bad_configuration"
    CANCELLED = "cancelled"
    WALL_LIMIT = "wall_limit"
    UNKNOWN = "unknown"


def _any(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


MEMORY = _any(
    r"\b(CUDA|HIP|XPU|NPU|MPS) out of memory",
    r"\bOutOfMemoryError\b",
    r"can't allocate memory: you tried to allocate",
    r"Cannot allocate memory",
    r"^(\[rank\d+\]: )?MemoryError\b",
    r"Cuda failure \d* ?'out of memory'",
    r"CUBLAS_STATUS_ALLOC_FAILED",
    r"RESOURCE_EXHAUSTED: ",
    r"Exceeded (job|step) memory limit",
    r"exceeded memory limit \(",
    r"oom[-_]kill event",
    r"Out of memory: Killed process",
    r"\bOOMKilled\b",
)
NUMERICS = _any(
    r"\bloss (is|was|became) (nan|inf|not finite|non-?finite)",
    r"\bnon-?finite (loss|gradient|grad norm)",
    r"found NaN in (local|global|loss|grad)",
    r"NaN or Inf found",
    r"\bFloatingPointError\b",
    r"returned nan values in its",
)
CONFIGURATION = _any(
    r"\berror: unrecognized arguments",
    r"\berror: the following arguments are required",
    r"\berror: argument \S+: (invalid|expected)",
    r"^trainer: error: ",
    r"\b(ModuleNotFoundError|ImportError): ",
    r"can't open file .* No such file or directory",
    r"\bValidationError: \d+ validation error",
    r"must be divisible by",
    r"is not divisible by",
)
NODE = _any(
    r"CANCELLED AT \S+ DUE TO NODE FAILURE",
    r"srun: error: Node failure on",
    r"uncorrectable ECC error",
    r"\bNVRM: Xid\b",
    r"GPU has fallen off the bus",
    r"CUDA error: (unspecified launch failure|hardware stack error|device unavailable)",
)
TIMEOUT = _any(
    r"Watchdog caught collective operation timeout",
    r"Timed out waiting \d+ms for (send|recv) operation",
    r"Application timeout caused pair closure",
    r"failed to pass monitoredBarrier in",
    r"timed out in monitoredBarrier",
    r"wait timeout after \d+ms, keys",
    r"\bRendezvousTimeoutError\b",
    r"Socket Timeout",
)
LOST_PEER = _any(
    r"Connection closed by peer",
    r"Connection reset by peer",
    r"\bnccl(Remote|System|Internal)Error\b",
    r"\bRendezvousConnectionError\b",
    r"Broken pipe",
)
KILLED = _any(r"failed \(exitcode: -9\)", r"Signal 9 \(SIGKILL\) received by PID", r"task \d+: Killed$")

CAUSES: tuple[tuple[FailureKind, re.Pattern[str], float], ...] = (
    (FailureKind.OUT_OF_MEMORY, MEMORY, 0.85),
    (FailureKind.NODE_DOWN, NODE, 0.8),
    (FailureKind.NUMERICS, NUMERICS, 0.75),
    (FailureKind.BAD_CONFIGURATION, CONFIGURATION, 0.75),
    (FailureKind.COMMUNICATION_TIMEOUT, TIMEOUT, 0.8),
)
