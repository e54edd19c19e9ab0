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

from tools.trace.columns import NameTable, as_column, parse_nanoseconds
from tools.trace.record import RankTrace, Spans, UnreadableTraceError

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

    def text(self, key: str) -> str | None:
        value = (self.args or {}).get(key)
        return value if isinstance(value, str) else None

    @property
    def full_name(self) -> str:
        """With XLA's category if xprof has it: it tells fusions around a matrix product from others."""
        category = self.text("hlo_category")
        return f"{self.name} ({category})" if category else self.name


class _ViewerTrace(msgspec.Struct):
    traceEvents: list[_ViewerEvent]


def read_xplane(path: Path) -> RankTrace:
    """Reads one `*.xplane.pb`; raises UnreadableTraceError with the reason."""
    try:
        events = msgspec.json.decode(_convert(path), type=_ViewerTrace).traceEvents
    except (msgspec.DecodeError, RecursionError) as error:
        raise UnreadableTraceError(f"xprof gave no trace-viewer JSON: {error}") from error
    complete = [event for event in events if event.ph == "X"]
    work, notes = _choose_work(events, complete)
    # Steps marked with `StepTraceAnnotation` get the name that the PyTorch profiler gives them.
    steps = [event for event in complete if event.text("step_num") is not None]
    names = NameTable()
    return RankTrace(
        file=path.name,
        device=_spans(work, [event.full_name for event in work], names),
        is_memory=np.array([event.name.lower().startswith(_COPY_WORDS) for event in work], dtype=np.bool_),
        annotations=_spans(steps, [f"ProfilerStep#{event.text('step_num')}" for event in steps], names),
        device_name=next((name for event in work if (name := event.text("device_type")) is not None), None),
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


def _choose_work(
    events: list[_ViewerEvent], complete: list[_ViewerEvent]
) -> tuple[list[_ViewerEvent], tuple[str, ...]]:
    """The ops of the busiest device, or of the host if there is none."""
    processes, threads = {}, {}
    for event in events:
        label = str((event.args or {}).get("name", ""))
        if event.ph == "M" and event.name == "process_name":
            processes[event.pid] = label
        elif event.ph == "M" and event.name == "thread_name":
            threads[event.pid, event.tid] = label
    on_device = [
        event
        for event in complete
        if processes.get(event.pid, "").startswith(_DEVICE_PREFIX)
        and threads.get((event.pid, event.tid), "").startswith(_OP_LINES)
    ]
    if not on_device:
        host = [event for event in complete if event.text("hlo_op") is not None]
        return host, ("no device plane: XLA ops executed by the host are taken for it",) if host else ()
    (busiest, count), *_ = Counter(event.pid for event in on_device).most_common(1)
    if count == len(on_device):
        return on_device, ()
    note = f"the profile has several devices: only {processes[busiest]} is analysed"
    return [event for event in on_device if event.pid == busiest], (note,)


def _spans(events: list[_ViewerEvent], texts: list[str], names: NameTable) -> Spans:
    start_ns = parse_nanoseconds([event.ts for event in events])
    duration_ns = parse_nanoseconds([event.dur for event in events])
    lanes = as_column([event.tid for event in events])
    return names.spans(start_ns, duration_ns, names.number(texts), lanes, None)
