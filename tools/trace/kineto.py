"""Reads a kineto or Chrome-trace JSON file (plain or gzip) into a `RankTrace`."""

import gc
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import msgspec
import numpy as np

from tools.trace.classify import COLLECTIVE_OP, SHAPED_OPS, is_device_work, is_shaped_annotation
from tools.trace.columns import MemoryColumns, NameTable, SpanColumns, as_column
from tools.trace.events import (
    ANNOTATION,
    COPIES,
    HOST_OPS,
    DeviceEvent,
    Event,
    EventDecoder,
    HostEvent,
    LaunchEvent,
    MemoryEvent,
    decode_arguments,
)
from tools.trace.record import (
    NO_LINK,
    CollectiveArguments,
    DistributedInfo,
    OpArguments,
    RankTrace,
    UnreadableTraceError,
)
from tools.trace.stream import EventStream, Metadata, ReadLimits, open_json

_MAX_RANK = 10_000_000
PARTED_RANKS = 8
_RANK_IN_NAME = re.compile(r"rank[-_.]?(\d{1,7})(?!\d)", re.IGNORECASE)
_NUMBER_IN_NAME = re.compile(r"(?:^|[._-])(\d{1,7})(?=[._-]|$)")
_SHAPES = b'"Input Dims"'
_REPAIRED = "numbers that JSON does not allow (inf, nan) were read as absent"


@contextmanager
def paused_gc() -> Iterator[None]:
    """Reading makes many small objects and no cycles; looking for cycles takes up to a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@paused_gc()
def read_kineto(path: Path, limits: ReadLimits | None = None) -> RankTrace:
    """Reads one file; raises UnreadableTraceError with the reason."""
    trace = _read(path, limits or ReadLimits(), keep_host_ops=False)
    # Host ops are most of a file and matter only if there is no device; such files are short.
    return trace if len(trace.device) else _read(path, limits or ReadLimits(), keep_host_ops=True)


def _read(path: Path, limits: ReadLimits, keep_host_ops: bool) -> RankTrace:
    has_parts = (find_rank_in_name(path.name) or 0) < PARTED_RANKS
    columns = _Columns(keep_host_ops, has_parts)
    with open_json(path, limits) as source:
        stream = EventStream(source, EventDecoder().decode)
        try:
            for events in stream:
                columns.add(events)
        except OverflowError as error:
            raise UnreadableTraceError(f"a number is out of range: {error}") from error
        except RecursionError as error:
            raise UnreadableTraceError("the JSON is nested too deeply") from error
        except (msgspec.DecodeError, UnicodeError) as error:
            raise UnreadableTraceError(f"the arguments of an event cannot be read: {error}") from error
    properties = stream.metadata.get("deviceProperties")
    first = properties[0] if isinstance(properties, list) and properties else None
    device_name = first.get("name") if isinstance(first, dict) else None
    return RankTrace(
        file=path.name,
        names=list(columns.names),
        device=columns.device.finish(),
        is_memory=np.array(columns.is_memory, dtype=np.bool_),
        device_collectives=columns.device_collectives,
        launches=columns.launches.finish(),
        host_ops=columns.host_ops.finish(),
        host_op_arguments=columns.op_arguments,
        host_op_collectives=columns.op_collectives,
        stack=columns.stack.finish(),
        has_parts=has_parts,
        annotations=columns.annotations.finish(),
        annotation_arguments=columns.annotation_arguments,
        device_annotations=columns.device_annotations.finish(),
        memory=columns.memory.finish(),
        distributed=read_distributed_info(stream.metadata),
        device_name=device_name if isinstance(device_name, str) and device_name else None,
        json_bytes=source.json_bytes,
        notes=(_REPAIRED,) if stream.repaired else (),
    )


class _Columns:
    """Takes batches of events, and keeps of each category what the analyses use."""

    def __init__(self, keep_host_ops: bool, keep_stack: bool) -> None:
        self.keep_host_ops, self.keep_stack = keep_host_ops, keep_stack
        self.names = NameTable()
        self.device, self.launches = SpanColumns(self.names), SpanColumns(self.names)
        self.host_ops, self.annotations = SpanColumns(self.names), SpanColumns(self.names)
        self.device_annotations, self.stack = SpanColumns(self.names), SpanColumns(self.names)
        self.is_memory: list[bool] = []
        self.device_collectives: dict[int, CollectiveArguments] = {}
        self.op_arguments: dict[int, OpArguments] = {}
        self.op_collectives: dict[int, CollectiveArguments] = {}
        self.annotation_arguments: dict[int, OpArguments] = {}
        self.memory = MemoryColumns()

    def add(self, events: list[Event]) -> None:
        by_form: dict[type[Event], list[Event]] = defaultdict(list)
        for event in events:
            by_form[type(event)].append(event)
        for form, chosen in by_form.items():
            if issubclass(form, DeviceEvent):
                self._add_device(cast(list[DeviceEvent], chosen), form.category in COPIES)
            elif issubclass(form, LaunchEvent):
                launches = [event for event in cast(list[LaunchEvent], chosen) if is_device_work(event.name)]
                links = as_column([event.args.correlation for event in launches], NO_LINK)
                self.launches.add(launches, as_column([event.tid for event in launches]), links)
            elif issubclass(form, MemoryEvent):
                instants = cast(list[MemoryEvent], chosen)
                self.memory.add([event for event in instants if event.name == "[memory]"])
            elif issubclass(form, HostEvent):
                self._add_host(form.category, cast(list[HostEvent], chosen))

    def _add_device(self, events: list[DeviceEvent], is_memory: bool) -> None:
        arguments = [event.args for event in events]
        streams: list[object] = [args.stream for args in arguments]
        if None in streams:
            streams = [event.tid if event.args.stream is None else event.args.stream for event in events]
        for position, args in enumerate(arguments, self.device.length):
            if args.kind is not None or args.group is not None:
                self.device_collectives[position] = args
        links = as_column([args.correlation for args in arguments], NO_LINK)
        self.device.add(events, as_column(streams), links)
        self.is_memory += [is_memory] * len(events)

    def _add_host(self, category: str, events: list[HostEvent]) -> None:
        columns = self.device_annotations
        if category in HOST_OPS:
            columns = self.host_ops
            if not self.keep_host_ops:
                if self.keep_stack:
                    self.stack.add(events, as_column([event.tid for event in events]))
                events = [event for event in events if event.name in SHAPED_OPS]
            shaped = [place for place, event in enumerate(events) if event.name in SHAPED_OPS]
            self.op_arguments |= _shapes(events, shaped, columns.length)
            collectives = [place for place in shaped if events[place].name == COLLECTIVE_OP]
            decoded = decode_arguments([events[place].args for place in collectives], CollectiveArguments)
            for place, args in zip(collectives, decoded, strict=True):
                if args.kind is not None or args.group is not None:
                    self.op_collectives[columns.length + place] = args
        elif category == ANNOTATION:
            columns = self.annotations
            shaped = [place for place, event in enumerate(events) if is_shaped_annotation(event.name)]
            self.annotation_arguments |= _shapes(events, shaped, columns.length)
        columns.add(events, as_column([event.tid for event in events]))


def _shapes(events: list[HostEvent], chosen: list[int], offset: int) -> dict[int, OpArguments]:
    """The recorded shapes of the chosen events, by position in their column."""
    texts = [events[place].args for place in chosen]
    if _SHAPES not in b"".join(texts):
        return {}
    decoded = decode_arguments(texts, OpArguments)
    return {offset + place: shape for place, shape in zip(chosen, decoded, strict=True) if shape.dims}


def read_distributed_info(metadata: Metadata) -> DistributedInfo:
    """From `distributedInfo`; strange values count as absent."""
    info = metadata.get("distributedInfo")
    if not isinstance(info, dict):
        return DistributedInfo()
    groups: dict[str, tuple[int, ...]] = {}
    descriptions: dict[str, str] = {}
    config = info.get("pg_config")
    for group in config if isinstance(config, list) else []:
        if isinstance(group, dict) and isinstance(group.get("pg_name"), str):
            ranks = group.get("ranks")
            if isinstance(ranks, list) and ranks and all(_small_number(rank) is not None for rank in ranks):
                groups[group["pg_name"]] = tuple(ranks)
            descriptions[group["pg_name"]] = str(group.get("pg_desc", ""))
    rank, world_size = _small_number(info.get("rank")), _small_number(info.get("world_size"))
    return DistributedInfo(rank, world_size, groups, descriptions)


def _small_number(value: object) -> int | None:
    """Booleans and absurd numbers are no ranks."""
    return value if type(value) is int and 0 <= value < _MAX_RANK else None


def find_rank_in_name(file_name: str) -> int | None:
    """`rank12`, `rank_12`, else the only number of the name (`trace.12.json`)."""
    match = _RANK_IN_NAME.search(file_name)
    if match:
        return int(match.group(1))
    numbers = _NUMBER_IN_NAME.findall(file_name)
    return int(numbers[0]) if len(numbers) == 1 else None
