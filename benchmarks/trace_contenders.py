"""What `trace.py` compares: each contender goes from a gzip trace to compute and exposed communication.

Imports stand inside the functions: a contender is only looked for when its turn comes.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")

Breakdown = tuple[float, float]
"""Microseconds of compute, and of communication that no compute hides."""


def asap(path: Path) -> Breakdown:
    from tools.trace.breakdown import occupy
    from tools.trace.classify import classify, load_patterns
    from tools.trace.kineto import read_kineto

    trace = read_kineto(path)
    terms = occupy(classify(trace, load_patterns()), trace.launches).whole()
    return terms.compute_ns / 1000, terms.exposed_communication_ns / 1000


def asap_all(path: Path) -> Breakdown:
    """With every analysis of a rank: steps, collectives, roofline, host, memory, timeline."""
    from tools.trace.classify import load_patterns
    from tools.trace.files import profile_file

    terms = profile_file(path, load_patterns()).breakdown
    return terms.compute_ns / 1000, terms.exposed_communication_ns / 1000


def json_load(path: Path) -> Breakdown:
    """The least that a tool does which loads every event as a dictionary."""
    return _break_down(_load(path))


def full_load(path: Path) -> Breakdown:
    """What full-loading tools do, in plain Python and NumPy: every event a dictionary, copied with a number
    of its own and an end; a call tree per thread; kernels tied to calls; a frame with a column per key, those
    of `args` too, and the breakdown from that frame."""
    events = [{**event, "UID": number} for number, event in enumerate(_load(path))]
    _link(events)
    return _break_down_frame(_build_frame(events))


def _link(events: list[dict[str, Any]]) -> None:
    by_thread: dict[Any, list[dict[str, Any]]] = {}
    calls: dict[Any, dict[str, Any]] = {}
    for event in events:
        if "dur" in event:
            event["t_end"] = event["ts"] + event["dur"]
            event["children"] = []
            by_thread.setdefault((event.get("pid"), event.get("tid")), []).append(event)
            if event.get("cat") in ("cuda_runtime", "cuda_driver"):
                calls[event.get("args", {}).get("correlation")] = event
    for thread in by_thread.values():
        _build_tree(thread)
    for event in events:
        if event.get("cat") in _DEVICE:
            event["launch"] = calls.get(event.get("args", {}).get("correlation"), {}).get("UID")


def _build_frame(events: list[dict[str, Any]]) -> dict[str, Any]:
    """A column per key over all events, as a data frame made from records has them; None where absent."""
    import numpy as np

    rows = [{**event, **event["args"]} if isinstance(event.get("args"), dict) else event for event in events]
    keys = dict.fromkeys(key for row in rows for key in row)
    return {key: np.array([row.get(key) for row in rows], dtype=object) for key in keys}


def _break_down_frame(frame: dict[str, Any]) -> Breakdown:
    import numpy as np

    chosen = np.flatnonzero(frame["cat"] == "kernel")
    starts = frame["ts"][chosen].astype(np.float64)
    ends = starts + frame["dur"][chosen].astype(np.float64)
    talks = np.array(["nccl" in name.lower() for name in frame["name"][chosen]], dtype=np.bool_)
    spans = list(zip(starts.tolist(), ends.tolist(), strict=True))
    busy = _union([span for span, talking in zip(spans, talks, strict=True) if not talking])
    return busy, _union(spans) - busy


def _build_tree(thread: list[dict[str, Any]]) -> None:
    thread.sort(key=lambda event: (event["ts"], -event["dur"]))
    open_calls: list[dict[str, Any]] = []
    for event in thread:
        while open_calls and open_calls[-1]["t_end"] < event["t_end"]:
            open_calls.pop()
        if open_calls:
            event["parent"] = open_calls[-1]["UID"]
            open_calls[-1]["children"].append(event["UID"])
        open_calls.append(event)


def _load(path: Path) -> list[dict[str, Any]]:
    import gzip

    with gzip.open(path) as file:
        events: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return events


def _break_down(events: list[dict[str, Any]]) -> Breakdown:
    compute: list[tuple[float, float]] = []
    talking: list[tuple[float, float]] = []
    for event in events:
        if event.get("cat") == "kernel":
            talks = "nccl" in event["name"].lower()
            (talking if talks else compute).append((event["ts"], event["ts"] + event["dur"]))
    busy = _union(compute)
    return busy, _union(compute + talking) - busy


def _union(intervals: list[tuple[float, float]]) -> float:
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def tracelens(path: Path) -> Breakdown:
    """As its documentation says: load the file into a tree of events, then ask for the timeline."""
    from TraceLens import TreePerfAnalyzer  # type: ignore[import-not-found]

    table = TreePerfAnalyzer.from_file(str(path)).get_df_gpu_timeline()
    times = dict(zip(table["type"], table["time ms"], strict=True))
    return times["computation_time"] * 1000, times["exposed_comm_time"] * 1000


def tracelens_bare(path: Path) -> Breakdown:
    """Only its loader and its analyser of device events, without the tree."""
    from TraceLens.TreePerf.gpu_event_analyser import (  # type: ignore[import-not-found]
        PytorchGPUEventAnalyser,
    )
    from TraceLens.util import DataLoader  # type: ignore[import-not-found]

    events = DataLoader.load_data(str(path))["traceEvents"]
    for number, event in enumerate(events):
        event["UID"] = number
        if "ts" in event and "dur" in event:
            event["t_end"] = event["ts"] + event["dur"]
    times = PytorchGPUEventAnalyser(events).compute_metrics()
    return times["computation_time"], times["exposed_comm_time"]


def hta(path: Path) -> Breakdown:
    from hta.trace_analysis import TraceAnalysis  # type: ignore[import-not-found]

    analysis = TraceAnalysis(trace_files={0: str(path)}, trace_dir=str(path.parent))
    row = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    return float(row["compute_time(us)"]), float(row["non_compute_time(us)"])


CONTENDERS: dict[str, Callable[[Path], Breakdown]] = {
    "asap": asap,
    "asap, all analyses": asap_all,
    "json.load": json_load,
    "full load": full_load,
    "TraceLens": tracelens,
    "TraceLens, no tree": tracelens_bare,
    "HolisticTraceAnalysis": hta,
}
PEERS = ("TraceLens", "TraceLens, no tree", "HolisticTraceAnalysis")
