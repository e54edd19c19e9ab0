"""Reads a kineto or Chrome-trace JSON file (plain or gzip) into a `RankTrace`."""

import gc
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tools.trace.classify import COLLECTIVE_OP, SHAPED_OPS, is_device_work, is_shaped_annotation
from tools.trace.columns import (
    MemoryColumns,
    NameTable,
    SpanColumns,
    as_collective,
    as_lanes,
    as_links,
    as_op_arguments,
)
from tools.trace.events import (
    ANNOTATION,
    COPIES,
    DEVICE_ANNOTATION,
    HOST_OPS,
    INSTANTS,
    KERNELS,
    RUNTIMES,
    DeviceArguments,
    DeviceEvent,
    Event,
    EventDecoder,
    HostEvent,
    LaunchEvent,
    MemoryEvent,
    ShapeArguments,
    Span,
    decode_arguments,
)
from tools.trace.record import (
    CollectiveArguments,
    DistributedInfo,
    Integers,
    OpArguments,
    RankTrace,
    UnreadableTraceError,
)
from tools.trace.stream import EventStream, Metadata, ReadLimits, open_json

_MAX_RANK = 10_000_000
_RANK_IN_NAME = re.compile(r"rank[-_.]?(\d{1,7})(?!\d)", re.IGNORECASE)
_NUMBER_IN_NAME = re.compile(r"(?:^|[._-])(\d{1,7})(?=[._-]|$)")


def read_distributed_info(metadata: Metadata) -> DistributedInfo:
    """From `distributedInfo`; strange values count as absent."""
    info = metadata.get("distributedInfo")
    if not isinstance(info, dict):
        return DistributedInfo()
    groups, descriptions = _read_groups(info.get("pg_config"))
    return DistributedInfo(
        rank=_small_number(info.get("rank")),
        world_size=_small_number(info.get("world_size")),
        groups=groups,
        group_descriptions=descriptions,
    )


def _read_groups(config: object) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    groups: dict[str, tuple[int, ...]] = {}
    descriptions: dict[str, str] = {}
    for group in config if isinstance(config, list) else []:
        if not isinstance(group, dict) or not isinstance(group.get("pg_name"), str):
            continue
        ranks = group.get("ranks")
        if isinstance(ranks, list) and ranks and all(_small_number(rank) is not None for rank in ranks):
            groups[group["pg_name"]] = tuple(ranks)
        descriptions[group["pg_name"]] = str(group.get("pg_desc", ""))
    return groups, descriptions


def find_device_name(metadata: Metadata) -> str | None:
    """The first accelerator's name."""
    properties = metadata.get("deviceProperties")
    if isinstance(properties, list) and properties and isinstance(properties[0], dict):
        name = properties[0].get("name")
        return name if isinstance(name, str) and name else None
    return None


def find_rank_in_name(file_name: str) -> int | None:
    """`rank12`, `rank_12`, else the only number of the name (`trace.12.json`)."""
    match = _RANK_IN_NAME.search(file_name)
    if match:
        return int(match.group(1))
    numbers = _NUMBER_IN_NAME.findall(file_name)
    return int(numbers[0]) if len(numbers) == 1 else None


def _small_number(value: object) -> int | None:
    """Booleans and absurd numbers are no ranks."""
    return (
        value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_RANK else None
    )


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
    builder = _Builder(keep_host_ops)
    with open_json(path, limits) as source:
        stream = EventStream(source, EventDecoder().decode)
        try:
            for events in stream:
                builder.add(events)
        except OverflowError as error:
            raise UnreadableTraceError(f"a number is out of range: {error}") from error
        except RecursionError as error:
            raise UnreadableTraceError("the JSON is nested too deeply") from error
        except (msgspec.DecodeError, UnicodeError) as error:
            raise UnreadableTraceError(f"the arguments of an event cannot be read: {error}") from error
    return builder.finish(path, stream, source.json_bytes)


class _Builder:
    """Takes batches of events; each method in `_add_kind` takes the events of one kind."""

    def __init__(self, keep_host_ops: bool) -> None:
        self.keep_host_ops = keep_host_ops
        self.names = NameTable()
        self.device, self.launches = SpanColumns(self.names), SpanColumns(self.names)
        self.host_ops, self.annotations = SpanColumns(self.names), SpanColumns(self.names)
        self.device_annotations = SpanColumns(self.names)
        self.is_memory: list[bool] = []
        self.device_collectives: dict[int, CollectiveArguments] = {}
        self.op_arguments: dict[int, OpArguments] = {}
        self.op_collectives: dict[int, CollectiveArguments] = {}
        self.annotation_arguments: dict[int, OpArguments] = {}
        self.memory = MemoryColumns()
        self._add_category: dict[str, Callable[[list[Any]], None]] = {
            **dict.fromkeys(KERNELS, self._add_kernels),
            **dict.fromkeys(COPIES, self._add_copies),
            **dict.fromkeys(RUNTIMES, self._add_launches),
            **dict.fromkeys(HOST_OPS, self._add_host_ops),
            ANNOTATION: self._add_annotations,
            DEVICE_ANNOTATION: self._add_device_annotations,
            **dict.fromkeys(INSTANTS, self._add_instants),
        }

    def add(self, events: list[Event]) -> None:
        by_form: dict[type[Event], list[Event]] = defaultdict(list)
        for event in events:
            by_form[type(event)].append(event)
        for form, chosen in by_form.items():
            if issubclass(form, Span):
                self._add_category[form.category](chosen)

    def _add_kernels(self, events: list[DeviceEvent], is_memory: bool = False) -> None:
        arguments = [event.args for event in events]
        streams: list[object] = [args.stream for args in arguments]
        if None in streams:
            streams = [event.tid if event.args.stream is None else event.args.stream for event in events]
        for position, args in enumerate(arguments, self.device.length):
            if args.collective is not None or args.group is not None:
                self.device_collectives[position] = as_collective(args)
        self.device.add(events, as_lanes(streams), as_links([args.correlation for args in arguments]))
        self.is_memory += [is_memory] * len(events)

    def _add_copies(self, events: list[DeviceEvent]) -> None:
        self._add_kernels(events, is_memory=True)

    def _add_launches(self, events: list[LaunchEvent]) -> None:
        events = [event for event in events if is_device_work(event.name)]
        self.launches.add(events, _threads(events), as_links([event.args.correlation for event in events]))

    def _add_host_ops(self, events: list[HostEvent]) -> None:
        if not self.keep_host_ops:
            events = [event for event in events if event.name in SHAPED_OPS]
        shaped = [i for i, event in enumerate(events) if event.name in SHAPED_OPS]
        self.op_arguments.update(_shapes(events, shaped, self.host_ops.length))
        collectives = [i for i in shaped if events[i].name == COLLECTIVE_OP]
        decoded = decode_arguments([events[i].args for i in collectives], DeviceArguments)
        for i, args in zip(collectives, decoded, strict=True):
            if args.collective is not None or args.group is not None:
                self.op_collectives[self.host_ops.length + i] = as_collective(args)
        self.host_ops.add(events, _threads(events))

    def _add_annotations(self, events: list[HostEvent]) -> None:
        shaped = [i for i, event in enumerate(events) if is_shaped_annotation(event.name)]
        self.annotation_arguments.update(_shapes(events, shaped, self.annotations.length))
        self.annotations.add(events, _threads(events))

    def _add_device_annotations(self, events: list[HostEvent]) -> None:
        self.device_annotations.add(events, _threads(events))

    def _add_instants(self, events: list[MemoryEvent]) -> None:
        self.memory.add([event for event in events if event.name == "[memory]"])

    def finish(self, path: Path, stream: EventStream[Event], json_bytes: int) -> RankTrace:
        note = "numbers that JSON does not allow (inf, nan) were read as absent"
        return RankTrace(
            file=path.name,
            names=list(self.names),
            device=self.device.finish(),
            is_memory=np.array(self.is_memory, dtype=np.bool_),
            device_collectives=self.device_collectives,
            launches=self.launches.finish(),
            host_ops=self.host_ops.finish(),
            host_op_arguments=self.op_arguments,
            host_op_collectives=self.op_collectives,
            annotations=self.annotations.finish(),
            annotation_arguments=self.annotation_arguments,
            device_annotations=self.device_annotations.finish(),
            memory=self.memory.finish(),
            distributed=read_distributed_info(stream.metadata),
            device_name=find_device_name(stream.metadata),
            json_bytes=json_bytes,
            notes=(note,) if stream.repaired else (),
        )


_SHAPES = b'"Input Dims"'


def _threads(events: Sequence[Span]) -> Integers:
    return as_lanes([event.tid for event in events])


def _shapes(events: list[HostEvent], chosen: list[int], offset: int) -> dict[int, OpArguments]:
    texts = [events[i].args for i in chosen]
    if _SHAPES not in b"".join(texts):
        return {}
    decoded = decode_arguments(texts, ShapeArguments)
    shapes = ((offset + i, as_op_arguments(arguments)) for i, arguments in zip(chosen, decoded, strict=True))
    return {position: shape for position, shape in shapes if shape is not None}
