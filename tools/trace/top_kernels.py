"""The kernels that take most of a rank's time, by name; host ops (on CPU) with what they contain."""

import msgspec
import numpy as np

from tools.trace.classify import Work
from tools.trace.record import RankTrace

CLASS_NAMES = ("compute", "communication", "memory")
_TOP = 10


class KernelTotal(msgspec.Struct, frozen=True):
    """All events of one name."""

    name: str
    work_class: str
    count: int
    time_ns: int


def list_top_kernels(trace: RankTrace, work: Work) -> list[KernelTotal]:
    """The ten with the largest summed time, longest first."""
    time_ns = np.zeros(len(trace.names), dtype=np.int64)
    np.add.at(time_ns, work.spans.name, work.spans.duration_ns)
    count = np.bincount(work.spans.name, minlength=len(trace.names))
    work_class = np.zeros(len(trace.names), dtype=np.int64)
    work_class[work.spans.name] = work.work_class
    longest = np.argsort(-time_ns, kind="stable")[:_TOP]
    return [
        KernelTotal(
            trace.names[number], CLASS_NAMES[work_class[number]], int(count[number]), int(time_ns[number])
        )
        for number in longest
        if count[number]
    ]
