"""What failures cost a long run: when to write a checkpoint, and the share of time that is progress.

J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, Future Generation
Computer Systems 22 (2006): equations 20 (expected time) and 37 (interval). Its first term is Young's (1974).
"""

import math


def checkpoint_interval_s(write_s: float, between_failures_s: float) -> float:
    """The time of work between two checkpoints that loses least."""
    if write_s >= 2 * between_failures_s:
        return between_failures_s
    ratio = write_s / (2 * between_failures_s)
    young = math.sqrt(2 * write_s * between_failures_s)
    return young * (1 + math.sqrt(ratio) / 3 + ratio / 9) - write_s


def goodput(interval_s: float, write_s: float, restart_s: float, between_failures_s: float) -> float:
    """The share of a run's time that is work which is kept."""
    mean = between_failures_s
    if (interval_s + write_s + restart_s) / mean > 500:  # beyond what a float's exponent holds: no progress
        return 0.0
    return interval_s / (mean * math.exp(restart_s / mean) * math.expm1((interval_s + write_s) / mean))
