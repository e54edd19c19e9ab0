"""Small traces and profiles written by hand, so that every expected figure can be added up in the head."""

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.scenario import Plan
from tools.trace.breakdown import Breakdown, StepProfile
from tools.trace.classify import RankWork, classify, load_patterns, with_user_kernels
from tools.trace.collectives import CollectiveEvent
from tools.trace.kineto import read_kineto
from tools.trace.rank_profile import RankProfile, profile_rank
from tools.trace.record import RankTrace

Event = dict[str, Any]
MS = 1_000_000


def write(folder: Path, events: list[Event], name: str = "rank0.json", **metadata: object) -> Path:
    """One trace file."""
    path = folder / name
    text = json.dumps({**metadata, "traceEvents": events}).encode()
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return path


def trace_of(folder: Path, events: list[Event], **metadata: object) -> RankTrace:
    return read_kineto(write(folder, events, "rank0.json", **metadata))


def work_of(folder: Path, events: list[Event], *own_kernels: str) -> RankWork:
    """Classified, with the user's own patterns of communication kernels."""
    return classify(trace_of(folder, events), with_user_kernels(load_patterns(), [*own_kernels]))


def profile_of(folder: Path, events: list[Event], **metadata: object) -> RankProfile:
    return profile_rank(trace_of(folder, events, **metadata), load_patterns())


def kernel(
    name: str,
    start: float,
    length: float,
    stream: int = 7,
    correlation: int | None = None,
    args: Mapping[str, object] | None = None,
) -> Event:
    """From `start` for `length` microseconds, with its launch's correlation if any."""
    more = dict(args or {}) if correlation is None else {"correlation": correlation, **(args or {})}
    times = {"pid": 0, "tid": stream, "ts": start, "dur": length}
    return {"ph": "X", "cat": "kernel", "name": name, **times, "args": {"stream": stream, **more}}


def host_event(
    category: str,
    name: str,
    start: float,
    length: float,
    thread: int = 1,
    args: Mapping[str, object] | None = None,
) -> Event:
    """A launch, op or annotation on the host."""
    times = {"pid": 1, "tid": thread, "ts": start, "dur": length}
    return {"ph": "X", "cat": category, "name": name, **times, "args": args or {}}


def launch(start: float, length: float, correlation: int, thread: int = 1) -> Event:
    return host_event("cuda_runtime", "cudaLaunchKernel", start, length, thread, {"correlation": correlation})


def shapes(*dims: list[int], dtype: str = "float") -> dict[str, object]:
    """The arguments of an op with these inputs."""
    return {"Input Dims": list(dims), "Input type": [dtype] * len(dims)}


def collective(
    start_ns: int,
    end_ns: int,
    ranks: tuple[int, ...] | None = None,
    *,
    kind: str = "all_reduce",
    group: str | None = None,
    group_size: int | None = 2,
    size: int | None = 1000,
    before: tuple[int, int, int] = (0, 0, 0),
) -> CollectiveEvent:
    """`before`: nanoseconds of compute, late host and data loading."""
    group_size = len(ranks) if ranks else group_size
    return CollectiveEvent(kind, group, ranks, group_size, size, start_ns, end_ns, *before)


def rank_profile(
    rank: int = 0,
    breakdown: Breakdown | None = None,
    *,
    steps: int = 0,
    **more: Any,  # noqa: ANN401 - any field
) -> RankProfile:
    """Of a device, with equal steps."""
    terms = breakdown or Breakdown()
    equal = [StepProfile(number, number * terms.total_ns, terms) for number in range(steps)]
    settings = {"file": "rank.json", "basis": "device", "steps": equal, **more}
    return RankProfile(rank=rank, breakdown=terms, **settings)


def plan(**degrees: int) -> Plan:
    """Every other degree is 1."""
    ones = dict.fromkeys(("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "dp_shard", "micro_batch_size"), 1)
    rest = {"zero_stage": 1, "sequence_parallel": False, "recompute": None, "schedule": "1f1b"}
    return Plan.model_validate({**ones, **degrees, **rest})
