"""Reads an XPlane profile of JAX (TPU, GPU or CPU) into a `RankTrace` with the optional package `xprof`."""

import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tools.trace.columns import NameTable, as_lanes, check_times, parse_nanoseconds
from tools.trace.record import NO_LINK, DistributedInfo, RankTrace, Spans, UnreadableTraceError, empty_spans

_DEVICE_PREFIX = "/device:"
_OP_LINES = ("XLA Ops", "Async XLA Ops", "Stream #")
"""Names of the lines that hold executed ops; the others repeat them by module, step or source line."""
_COPY_WORDS = ("copy", "memcpy", "infeed", "outfeed", "host-transfer")


class _ViewerEvent(msgspec.Struct, gc=False):
    ph: str = ""
    name: str = ""
    pid: int = 0
    tid: int = 0
    ts: msgspec.Raw = msgspec.Raw(b"0")
    dur: msgspec.Raw = msgspec.Raw(b"0")
    args: dict[str, Any] | None = None


class _ViewerTrace(msgspec.Struct):
    traceEvents: list[_ViewerEvent]


def read_xplane(path: Path) -> RankTrace:
    """Reads one `*.xplane.pb`; raises UnreadableTraceError with the reason."""
    try:
        events = msgspec.json.decode(_convert(path), type=_ViewerTrace).traceEvents
    except (msgspec.DecodeError, RecursionError) as error:
        raise UnreadableTraceError(f"xprof gave no trace-viewer JSON: {error}") from error
    processes = _label(events, "process_name")
    work, notes = _choose_work(events, processes)
    names = NameTable()
    spans = _spans(work, names)
    return RankTrace(
        file=path.name,
        device=spans,
        is_memory=_is_copy(work),
        device_collectives={},
        launches=empty_spans(),
        host_ops=empty_spans(),
        host_op_arguments={},
        host_op_collectives={},
        annotations=_steps(events, names),
        annotation_arguments={},
        device_annotations=empty_spans(),
        memory=(),
        distributed=DistributedInfo(),
        device_name=_find_device_name(work),
        notes=notes,
        names=list(names),
    )


def _convert(path: Path) -> bytes:
    try:
        from xprof.convert import raw_to_tool_data  # type: ignore[import-not-found]
    except ImportError as error:
        raise UnreadableTraceError(
            "reading XPlane needs the package xprof (pip install 'asap-sharding[xprof]')"
        ) from error
    with _without_native_logs():
        try:
            text, _ = raw_to_tool_data.xspace_to_tool_data([str(path)], "trace_viewer", {})
        except Exception as error:  # xprof documents no error types of its own
            raise UnreadableTraceError(f"xprof cannot read it: {error}") from error
    if not text:
        raise UnreadableTraceError("xprof found nothing in it")
    return text.encode() if isinstance(text, str) else bytes(text)


@contextmanager
def _without_native_logs() -> Iterator[None]:
    """xprof's native part writes its progress to file descriptor 2; ours stays for our own messages."""
    sys.stderr.flush()
    kept = os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(null)


def _label(events: list[_ViewerEvent], kind: str) -> dict[tuple[int, int], str]:
    """Names of processes (with tid 0) or threads."""
    return {
        (event.pid, event.tid if kind == "thread_name" else 0): str((event.args or {}).get("name", ""))
        for event in events
        if event.ph == "M" and event.name == kind
    }


def _choose_work(
    events: list[_ViewerEvent], processes: dict[tuple[int, int], str]
) -> tuple[list[_ViewerEvent], tuple[str, ...]]:
    devices = {pid for (pid, _), name in processes.items() if name.startswith(_DEVICE_PREFIX)}
    threads = _label(events, "thread_name")
    complete = [event for event in events if event.ph == "X"]
    on_device = [
        event
        for event in complete
        if event.pid in devices and threads.get((event.pid, event.tid), "").startswith(_OP_LINES)
    ]
    if not on_device:
        host = [event for event in complete if _has(event, "hlo_op")]
        return host, ("no device plane: XLA ops executed by the host are taken for it",) if host else ()
    busiest, _ = Counter(event.pid for event in on_device).most_common(1)[0]
    chosen = [event for event in on_device if event.pid == busiest]
    if len({event.pid for event in on_device}) == 1:
        return chosen, ()
    name = processes[busiest, 0]
    return chosen, (f"the profile has several devices: only {name} is analysed",)


def _has(event: _ViewerEvent, key: str) -> bool:
    return event.args is not None and isinstance(event.args.get(key), str)


def _spans(events: list[_ViewerEvent], names: NameTable) -> Spans:
    start_ns = parse_nanoseconds([event.ts for event in events])
    duration_ns = parse_nanoseconds([event.dur for event in events])
    full_names = [_full_name(event) for event in events]
    check_times(start_ns, duration_ns, full_names.__getitem__)
    return Spans(
        start_ns,
        start_ns + duration_ns,
        names.number(full_names),
        as_lanes([event.tid for event in events]),
        np.full(len(events), NO_LINK),
    )


def _full_name(event: _ViewerEvent) -> str:
    """With XLA's category if xprof has it: it distinguishes fusions around a matrix product from others."""
    category = (event.args or {}).get("hlo_category")
    return f"{event.name} ({category})" if isinstance(category, str) and category else event.name


def _find_device_name(events: list[_ViewerEvent]) -> str | None:
    named = ((event.args or {}).get("device_type") for event in events)
    return next((name for name in named if isinstance(name, str)), None)


def _is_copy(events: list[_ViewerEvent]) -> NDArray[np.bool_]:
    return np.array([event.name.lower().startswith(_COPY_WORDS) for event in events], dtype=np.bool_)


def _steps(events: list[_ViewerEvent], names: NameTable) -> Spans:
    """Steps marked with `StepTraceAnnotation`, under the name that the PyTorch profiler gives them."""
    marked = [event for event in events if event.ph == "X" and _has(event, "step_num")]
    spans = _spans(marked, NameTable())
    numbers = [f"ProfilerStep#{(event.args or {})['step_num']}" for event in marked]
    return Spans(spans.start_ns, spans.end_ns, names.number(numbers), spans.lane, spans.link)
