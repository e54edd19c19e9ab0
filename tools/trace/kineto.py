"""Reads a kineto or Chrome-trace JSON file (plain or gzip) into a `RankTrace`."""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from tools.trace.classify import COLLECTIVE_OP, SHAPED_OPS, is_device_work, is_shaped_annotation
from tools.trace.columns import (
    CollectiveDescription,
    LaunchArguments,
    MemoryColumns,
    NameTable,
    ShapeArguments,
    SpanColumns,
    StreamArguments,
    any_collective,
    as_collective,
    as_lanes,
    as_links,
    as_op_arguments,
    decode_arguments,
    is_collective,
)
from tools.trace.record import (
    CollectiveArguments,
    DistributedInfo,
    Integers,
    OpArguments,
    RankTrace,
    UnreadableTraceError,
)
from tools.trace.stream import EventStream, Metadata, ReadLimits, TraceEvent, open_json

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


KIND_OF_CATEGORY = {
    "kernel": "kernel",
    "gpu_memcpy": "copy",
    "gpu_memset": "copy",
    "Memcpy": "copy",
    "Memset": "copy",
    "cuda_runtime": "launch",
    "cuda_driver": "launch",
    "Runtime": "launch",
    "hip_runtime": "launch",
    "xpu_runtime": "launch",
    "mtia_runtime": "launch",
    "privateuse1_runtime": "launch",
    "Kernel": "kernel",
    "cpu_op": "host_op",
    "Operator": "host_op",
    "operator": "host_op",
    "user_annotation": "annotation",
    "gpu_user_annotation": "device_annotation",
    "cpu_instant_event": "instant",
    "instant_event": "instant",
}


def read_kineto(path: Path, limits: ReadLimits | None = None) -> RankTrace:
    """Reads one file; raises UnreadableTraceError with the reason."""
    trace = _read(path, limits or ReadLimits(), keep_host_ops=False)
    # Host ops are most of a file and matter only if there is no device; such files are short.
    return trace if len(trace.device) else _read(path, limits or ReadLimits(), keep_host_ops=True)


def _read(path: Path, limits: ReadLimits, keep_host_ops: bool) -> RankTrace:
    builder = _Builder(keep_host_ops)
    with open_json(path, limits) as source:
        stream = EventStream(source)
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
        self._add_kind: dict[str, Callable[[list[TraceEvent]], None]] = {
            "kernel": self._add_kernel,
            "copy": self._add_copy,
            "launch": self._add_launch,
            "host_op": self._add_host_op,
            "annotation": self._add_annotation,
            "device_annotation": self._add_device_annotation,
            "instant": self._add_instant,
        }

    def add(self, events: list[TraceEvent]) -> None:
        by_category: dict[str, list[TraceEvent]] = defaultdict(list)
        for event in events:
            by_category[event.cat].append(event)
        for category, chosen in by_category.items():
            kind = KIND_OF_CATEGORY.get(category)
            if kind is not None:
                self._add_kind[kind](chosen)

    def _add_kernel(self, events: list[TraceEvent], is_memory: bool = False) -> None:
        texts = [event.args for event in events]
        decoded = decode_arguments(texts, StreamArguments)
        self._add_collectives(self.device_collectives, self.device.length, texts)
        streams: list[object] = [arguments.stream for arguments in decoded]
        if None in streams:
            streams = [
                event.tid if stream is None else stream for stream, event in zip(streams, events, strict=True)
            ]
        self.device.add(events, as_lanes(streams), as_links([arguments.correlation for arguments in decoded]))
        self.is_memory += [is_memory] * len(events)

    def _add_collectives(
        self, collectives: dict[int, CollectiveArguments], first: int, texts: Sequence[bytes]
    ) -> None:
        """Keeps the descriptions of collectives; decodes only if the texts mention any."""
        if not any_collective(texts):
            return
        for position, description in enumerate(decode_arguments(texts, CollectiveDescription), first):
            if is_collective(description):
                collectives[position] = as_collective(description)

    def _add_copy(self, events: list[TraceEvent]) -> None:
        self._add_kernel(events, is_memory=True)

    def _add_launch(self, events: list[TraceEvent]) -> None:
        events = [event for event in events if is_device_work(event.name)]
        decoded = decode_arguments([event.args for event in events], LaunchArguments)
        self.launches.add(
            events, _threads(events), as_links([arguments.correlation for arguments in decoded])
        )

    def _add_host_op(self, events: list[TraceEvent]) -> None:
        if not self.keep_host_ops:
            events = [event for event in events if event.name in SHAPED_OPS]
        shaped = [i for i, event in enumerate(events) if event.name in SHAPED_OPS]
        self.op_arguments.update(_shapes(events, shaped, self.host_ops.length))
        for i in shaped:
            if events[i].name == COLLECTIVE_OP:
                self._add_collectives(self.op_collectives, self.host_ops.length + i, [events[i].args])
        self.host_ops.add(events, _threads(events))

    def _add_annotation(self, events: list[TraceEvent]) -> None:
        shaped = [i for i, event in enumerate(events) if is_shaped_annotation(event.name)]
        self.annotation_arguments.update(_shapes(events, shaped, self.annotations.length))
        self.annotations.add(events, _threads(events))

    def _add_device_annotation(self, events: list[TraceEvent]) -> None:
        self.device_annotations.add(events, _threads(events))

    def _add_instant(self, events: list[TraceEvent]) -> None:
        self.memory.add([event for event in events if event.name == "[memory]"])

    def finish(self, path: Path, stream: EventStream, json_bytes: int) -> RankTrace:
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


def _threads(events: list[TraceEvent]) -> Integers:
    return as_lanes([event.tid for event in events])


def _shapes(events: list[TraceEvent], chosen: list[int], offset: int) -> dict[int, OpArguments]:
    decoded = decode_arguments([events[i].args for i in chosen], ShapeArguments)
    shapes = ((offset + i, as_op_arguments(arguments)) for i, arguments in zip(chosen, decoded, strict=True))
    return {position: shape for position, shape in shapes if shape is not None}
