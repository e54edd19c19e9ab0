"""The `args` of events, decoded many at a time: only the keys that an analysis uses.

Writers disagree on types (`"stream": 7` or `"0x0"`), so a batch that does not fit the typed form is decoded
again key by key, and what cannot be understood counts as absent.
"""

import zlib
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np

from tools.trace.record import NO_LINK, CollectiveArguments, Integers, OpArguments

_INT64_LIMIT = 1 << 62
_MAX_RANKS = 1 << 20


class StreamArguments(msgspec.Struct, gc=False):
    """Of kernels, copies and sets."""

    stream: int | None = None
    correlation: int | None = None


class CollectiveDescription(msgspec.Struct, gc=False):
    """Of kernels that communicate and of `record_param_comms`."""

    collective: str | None = msgspec.field(default=None, name="Collective name")
    in_elements: int | None = msgspec.field(default=None, name="In msg nelems")
    out_elements: int | None = msgspec.field(default=None, name="Out msg nelems")
    group_size: int | None = msgspec.field(default=None, name="Group size")
    dtype: str | None = None
    group: str | None = msgspec.field(default=None, name="Process Group Name")
    ranks: str | None = msgspec.field(default=None, name="Process Group Ranks")


class LaunchArguments(msgspec.Struct, gc=False):
    """Of calls into the device runtime."""

    correlation: int | None = None


class ShapeArguments(msgspec.Struct, gc=False):
    """Of host ops."""

    dims: list[Any] | None = msgspec.field(default=None, name="Input Dims")
    types: list[Any] | None = msgspec.field(default=None, name="Input type")
    concrete: list[Any] | None = msgspec.field(default=None, name="Concrete Inputs")


class MemoryArguments(msgspec.Struct, gc=False):
    """Of `[memory]` events."""

    device_type: int | None = msgspec.field(default=None, name="Device Type")
    device: int | None = msgspec.field(default=None, name="Device Id")
    allocated: int | None = msgspec.field(default=None, name="Total Allocated")
    reserved: int | None = msgspec.field(default=None, name="Total Reserved")


Form = TypeVar("Form", bound=msgspec.Struct)


def decode_arguments(raw: Sequence[bytes], form: type[Form]) -> list[Form]:
    """One record per text, in order."""
    joined = b"[" + b",".join(raw) + b"]"
    try:
        return msgspec.json.decode(joined, type=list[form])  # type: ignore[valid-type]
    except msgspec.ValidationError:
        return [_coerce(item, form) for item in msgspec.json.decode(joined)]


def _coerce(item: object, form: type[Form]) -> Form:
    known = item if isinstance(item, dict) else {}
    fitting: dict[str, Any] = {}
    for one in msgspec.structs.fields(form):
        try:
            fitting[one.name] = msgspec.convert(known.get(one.encode_name), one.type, strict=False)
        except msgspec.ValidationError:
            continue
    return form(**fitting)


def as_links(correlations: list[int | None]) -> Integers:
    """Correlations as a column; absent or absurd ones are no link."""
    try:
        return np.array(correlations, dtype=np.int64)
    except (TypeError, ValueError, OverflowError):
        return np.array(
            [NO_LINK if one is None else _bounded(one, NO_LINK) for one in correlations], dtype=np.int64
        )


def as_lanes(tracks: Sequence[object]) -> Integers:
    """Streams or threads as a column; texts become numbers of their own."""
    try:
        return np.array(tracks, dtype=np.int64)
    except (TypeError, ValueError, OverflowError):
        return np.array([_as_lane(one) for one in tracks], dtype=np.int64)


def _as_lane(track: object) -> int:
    if isinstance(track, str):
        return zlib.crc32(track.encode("utf-8", "replace"))
    return _bounded(int(track), 0) if isinstance(track, int | float) and abs(track) < _INT64_LIMIT else 0


def _bounded(value: int, otherwise: int) -> int:
    return value if abs(value) < _INT64_LIMIT else otherwise


def any_collective(texts: Sequence[bytes]) -> bool:
    """Whether any of the texts may describe a collective."""
    joined = b"".join(texts)
    return b'"Collective name"' in joined or b'"Process Group Name"' in joined


def is_collective(arguments: CollectiveDescription) -> bool:
    """Whether the event carries a collective's description."""
    return arguments.collective is not None or arguments.group is not None


def as_collective(arguments: CollectiveDescription) -> CollectiveArguments:
    """The description in our terms."""
    return CollectiveArguments(
        kind=arguments.collective,
        group=arguments.group,
        ranks=parse_ranks(arguments.ranks),
        group_size=arguments.group_size,
        in_elements=_count(arguments.in_elements),
        out_elements=_count(arguments.out_elements),
        dtype=arguments.dtype,
    )


def as_op_arguments(arguments: ShapeArguments) -> OpArguments | None:
    """None when shapes were not recorded."""
    if not arguments.dims:
        return None
    return OpArguments(
        dims=tuple(arguments.dims),
        types=tuple(str(one) for one in arguments.types or ()),
        concrete=tuple(str(one) for one in arguments.concrete or ()),
    )


def parse_ranks(text: str | None) -> tuple[int, ...] | None:
    """`"[0, 1]"` to numbers; None for an abbreviated or strange list."""
    if not text or "..." in text:
        return None
    try:
        ranks = msgspec.json.decode(text.encode(), type=list[int])
    except msgspec.DecodeError:
        return None
    return tuple(ranks) if 0 < len(ranks) <= _MAX_RANKS else None


def _count(elements: int | None) -> int | None:
    return elements if elements is not None and 0 <= elements < _INT64_LIMIT else None
