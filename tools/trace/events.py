"""The events of a trace, decoded into the fields that the analyses of their category use.

One pass does both if the writer's types are the usual ones: each category is a struct of its own, chosen by
`cat`. What does not fit is decoded again, field by field.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache, reduce
from operator import or_
from typing import Any, ClassVar, TypeVar, cast

import msgspec

from tools.trace.record import CollectiveArguments

Buffer = bytes | memoryview
KERNELS = ("kernel", "Kernel")
COPIES = ("gpu_memcpy", "gpu_memset", "Memcpy", "Memset")
RUNTIMES = (
    "cuda_runtime",
    "cuda_driver",
    "Runtime",
    "hip_runtime",
    "xpu_runtime",
    "mtia_runtime",
    "privateuse1_runtime",
)
HOST_OPS = ("cpu_op", "Operator", "operator")
ANNOTATION, DEVICE_ANNOTATION = "user_annotation", "gpu_user_annotation"
_INSTANTS = ("cpu_instant_event", "instant_event")
_UNUSED = ("ac2g", "async_cpu_to_gpu", "cuda_sync", "fwdbwd", "overhead", "python_function", "Trace")
"""Only the most frequent: others are learnt from the file."""
_MAX_CATEGORIES = 100
_MAX_MISSES = 8
Form = TypeVar("Form", bound=msgspec.Struct)


class TraceEvent(msgspec.Struct, gc=False):
    """An event of any category; `ts`, `dur` and `args` stay text until they are wanted.

    Each key costs time in every event. `ph` is left out because the category says as much.
    """

    cat: str = ""
    name: str = ""
    tid: int | float | str | None = None
    ts: msgspec.Raw = msgspec.Raw(b"missing")
    dur: msgspec.Raw = msgspec.Raw(b"0")
    args: msgspec.Raw = msgspec.Raw(b"{}")


class DeviceArguments(CollectiveArguments, gc=False, frozen=True):
    """Kernels, copies and sets have these, those that communicate also what they send."""

    stream: int | None = None
    correlation: int | None = None


class LaunchArguments(msgspec.Struct, gc=False, frozen=True):
    correlation: int | None = None


class MemoryArguments(msgspec.Struct, gc=False, frozen=True):
    device_type: int | None = msgspec.field(default=None, name="Device Type")
    device: int | None = msgspec.field(default=None, name="Device Id")
    allocated: int | None = msgspec.field(default=None, name="Total Allocated")
    reserved: int | None = msgspec.field(default=None, name="Total Reserved")


class Event(msgspec.Struct, gc=False):
    """An event that no analysis uses: checked to be JSON, and no more."""

    category: ClassVar[str] = ""


class Span(Event, gc=False):
    """The keys of every event that is used, in the order in which kineto writes them."""

    arguments: ClassVar[type[msgspec.Struct] | None] = None
    name: str = ""
    tid: int | float | str | None = None
    ts: msgspec.Raw = msgspec.Raw(b"missing")
    dur: msgspec.Raw = msgspec.Raw(b"0")


class DeviceEvent(Span, gc=False):
    """A kernel, copy or set."""

    arguments = DeviceArguments
    args: DeviceArguments = DeviceArguments()


class LaunchEvent(Span, gc=False):
    """A call into the device runtime."""

    arguments = LaunchArguments
    args: LaunchArguments = LaunchArguments()


class MemoryEvent(Span, gc=False):
    """An instant event; those called `[memory]` are used."""

    arguments = MemoryArguments
    args: MemoryArguments = MemoryArguments()


class HostEvent(Span, gc=False):
    """A host op or an annotation; the arguments of few are looked at."""

    args: msgspec.Raw = msgspec.Raw(b"{}")


class EventDecoder:
    """Decodes arrays of events of one file; those that no analysis uses come back bare, or not at all."""

    def __init__(self) -> None:
        self._forms, self._typed = _first_forms()
        self._plain = msgspec.json.Decoder(list[TraceEvent])
        self._misses = 0

    def decode(self, text: Buffer) -> list[Event]:
        # A writer whose types are not the usual ones misses each time.
        if self._misses <= _MAX_MISSES:
            try:
                events = self._typed.decode(text)
            except msgspec.ValidationError:
                self._misses += 1
            else:
                self._misses = max(self._misses - 1, 0)
                return events
        by_category: dict[str, list[TraceEvent]] = defaultdict(list)
        for event in self._plain.decode(text):
            by_category[event.cat].append(event)
        new = by_category.keys() - self._forms.keys() - {""}
        if new and len(self._forms) + len(new) <= _MAX_CATEGORIES:
            self._forms = self._forms | _tag(new, Event)
            self._typed = _make_decoder(self._forms)
        typed: list[Event] = []
        for category, chosen in by_category.items():
            form = self._forms.get(category)
            if form is not None and issubclass(form, Span):
                texts = [event.args for event in chosen]
                arguments = decode_arguments(texts, form.arguments) if form.arguments else texts
                typed += [
                    form(event.name, event.tid, event.ts, event.dur, args)  # type: ignore[call-arg]
                    for event, args in zip(chosen, arguments, strict=True)
                ]
        return typed


@cache
def _first_forms() -> "tuple[dict[str, type[Event]], msgspec.json.Decoder[list[Event]]]":
    forms = {
        **_tag((*KERNELS, *COPIES), DeviceEvent),
        **_tag(RUNTIMES, LaunchEvent),
        **_tag((*HOST_OPS, ANNOTATION, DEVICE_ANNOTATION), HostEvent),
        **_tag(_INSTANTS, MemoryEvent),
        **_tag(_UNUSED, Event),
    }
    return forms, _make_decoder(forms)


def _tag(categories: Iterable[str], form: type[Event]) -> dict[str, type[Event]]:
    """A struct per category, since msgspec chooses a struct by the value of one key."""
    name, bases = form.__name__, (form,)
    return {
        category: msgspec.defstruct(  # type: ignore[misc]
            name, [], bases=bases, namespace={"category": category}, tag_field="cat", tag=category, gc=False
        )
        for category in categories
    }


def _make_decoder(forms: dict[str, type[Event]]) -> "msgspec.json.Decoder[list[Event]]":
    return msgspec.json.Decoder(list[reduce(or_, forms.values())])  # type: ignore[misc]


def decode_arguments(raw: Sequence[bytes], form: type[Form]) -> list[Form]:
    """One record per text, in order; a value of another type than usual is converted, or left out."""
    joined = b"[" + b",".join(raw) + b"]"
    try:
        return cast(list[Form], _make_list_decoder(form).decode(joined))
    except msgspec.ValidationError:
        items = msgspec.json.decode(joined)
    records = []
    for item in items:
        known = item if isinstance(item, dict) else {}
        fitting: dict[str, Any] = {}
        for field in msgspec.structs.fields(form):
            try:
                fitting[field.name] = msgspec.convert(known.get(field.encode_name), field.type, strict=False)
            except msgspec.ValidationError:
                continue
        records.append(form(**fitting))
    return records


@cache
def _make_list_decoder(form: type[msgspec.Struct]) -> "msgspec.json.Decoder[list[msgspec.Struct]]":
    return msgspec.json.Decoder(list[form])  # type: ignore[valid-type]
