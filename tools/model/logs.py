"""Step times from what training programs print or export: logs, CSV, JSON lines, TensorBoard's event files.

The formats are data (kb_seed/patterns/logs.toml). The first fifth of the steps is warm-up and left out; of
the rest the median counts, so that a checkpoint or an evaluation between two steps does not.
"""

import csv
import io
import json
import re
import statistics
import struct
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from itertools import pairwise
from typing import Literal, NamedTuple, TypeVar

import kb_seed
from tools.errors import InputError
from tools.model.runs import Measured, Run
from tools.scenario import Scenario
from tools.scenario.spec import ClosedModel

MIN_STEPS = 3
WARMUP_SHARE = 0.2
"""Share of the steps left out at the start: compilation, caches and first allocations."""
COARSE_BLOCK_S = 120.0
"""A clock of whole seconds is read over at least so long."""
MAX_EVENTS = 5_000_000
MIB_PER_GIB = 1024.0
MULTIPLES = {"": 1.0, "K": 1e3, "M": 1e6}
ALLOCATOR_KINDS: tuple[Literal["reserved", "allocated"], ...] = ("reserved", "allocated")
COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types of protocol buffers."""
T = TypeVar("T")
Cell = str | float | None
LogRow = Mapping[str, Cell]


class LogFormat(ClosedModel):
    name: str
    pattern: str
    source: str
    counts: Literal["steps", "batches"] = "steps"


class MemoryFormat(ClosedModel):
    pattern: str
    kind: Literal["reserved", "allocated"]
    source: str


class ExportedMemory(ClosedModel):
    column: str
    """A pattern of the column's plain name."""
    per_gib: float
    kind: Literal["reserved", "allocated", "device"]
    """What the allocator held or gave out, or what the device reported in use."""
    source: str


class LogFormats(ClosedModel):
    formats: list[LogFormat]
    memory: list[MemoryFormat]
    exported_memory: list[ExportedMemory]
    exports: dict[str, list[str]]


class LoggedSteps(NamedTuple):
    times_s: list[float] | None
    """None: fewer than three."""
    peak_memory_gib: float | None
    peak_memory_kind: Literal["reserved", "allocated"] | None
    device_memory_used_gib: float | None = None


class ClockReading(NamedTuple):
    step: float
    at_s: float


@cache
def log_formats() -> LogFormats:
    text = kb_seed.folder("patterns").joinpath("logs.toml").read_text(encoding="utf-8")
    return LogFormats.model_validate(tomllib.loads(text))


def read_log(data: bytes, scenario: Scenario, id: str = "") -> Run:
    """The run that a log or an export is of; raises InputError if it shows fewer than three steps."""
    logged = read_steps(data, scenario)
    if (times_s := logged.times_s) is None:
        known = ", ".join(format.name for format in log_formats().formats)
        allowed = (
            f"at least {MIN_STEPS} steps are needed, as printed by {known}, or as an export of Weights & "
            "Biases, MLflow or TensorBoard (CSV, JSON lines, event file) with step times or a clock"
        )
        raise InputError("LOG", "fewer", allowed)
    middle = statistics.median(times_s)
    spread = 1.4826 * statistics.median(abs(time_s - middle) for time_s in times_s) / middle
    measured = Measured(
        step_time_s=middle,
        peak_memory_gib=logged.peak_memory_gib,
        peak_memory_kind=logged.peak_memory_kind,
        device_memory_used_gib=logged.device_memory_used_gib,
        noise=min(spread / len(times_s) ** 0.5, 1.0),
    )
    return Run(scenario=scenario, measured=measured, id=id, source="import")


def read_steps(data: bytes, scenario: Scenario) -> LoggedSteps:
    """What a log or an export shows of a job's steady steps."""
    text = COLOURS.sub("", data.decode("utf-8", "replace"))
    times_s, rows = _printed(text, scenario), list[LogRow]()
    if not times_s:
        rows = _exported(data, text)
        times_s = _from_columns(rows)
    exported = _exported_peaks(rows)
    peaks = [*_peaks(text), *((exported[kind], kind) for kind in ALLOCATOR_KINDS if kind in exported)]
    peak, peak_kind = max(peaks, default=(None, None))
    steady = times_s if len(times_s) >= MIN_STEPS else None
    return LoggedSteps(steady, peak, peak_kind, exported.get("device"))


def _printed(text: str, scenario: Scenario) -> list[float]:
    """Steady steps by the first format that matches enough of the lines."""
    training, plan = scenario.training, scenario.plan
    batch = training.global_batch_size
    tokens = batch * training.seq_len / scenario.cluster.num_devices
    lines = text.splitlines()
    for format in log_formats().formats:
        pattern = re.compile(format.pattern)
        found = [match.groupdict() for line in lines if (match := pattern.search(line))]
        if not found:
            continue
        if "ms" in found[0]:
            times = [float(f["ms"]) / 1e3 * MULTIPLES[f["multiple"]] for f in found]
        elif "s" in found[0]:
            times = [float(f["s"]) for f in found]
        elif "samples_per_s" in found[0]:
            times = [batch / rate for f in found if (rate := float(f["samples_per_s"]))]
        elif "tokens_per_s_per_device" in found[0]:
            rates = (float(f["tokens_per_s_per_device"].replace(",", "")) for f in found)
            times = [tokens / rate for rate in rates if rate]
        else:
            batches = batch / (plan.dp * plan.micro_batch_size) if plan and format.counts == "batches" else 1
            clock = [ClockReading(float(f["step"]) / batches, _seconds(f)) for f in found]
            times = _between(clock)
            if len(times) >= MIN_STEPS:
                return times
            continue
        if len(times) >= MIN_STEPS:
            return _steady(times)
    return []


def _seconds(found: Mapping[str, str]) -> float:
    """Seconds of a date, or of hours, minutes and seconds."""
    if "at" in found:
        return datetime.fromisoformat(found["at"].replace(",", ".")).timestamp()
    seconds = 0.0
    for part in found["elapsed"].split(":"):
        seconds = 60 * seconds + float(part or 0)
    return seconds


def _steady(items: Sequence[T]) -> list[T]:
    """Without the warm-up."""
    return list(items[int(len(items) * WARMUP_SHARE) :])


def _between(clock: Sequence[ClockReading]) -> list[float]:
    """The time of a step in each stretch between two readings; long stretches, if the clock is coarse."""
    ordered = [clock[0]] if clock else []
    for reading in clock:  # a bar is redrawn, an epoch starts again
        if reading.step > ordered[-1].step and reading.at_s >= ordered[-1].at_s:
            ordered.append(reading)
    ordered = _steady(ordered)
    if len(ordered) <= MIN_STEPS:
        return []
    is_coarse = len({round(reading.at_s % 1, 3) for reading in ordered}) == 1  # whole seconds apart
    span_s = ordered[-1].at_s - ordered[0].at_s
    blocks = len(ordered) - 1
    if is_coarse:
        blocks = max(min(blocks, int(span_s / COARSE_BLOCK_S)), MIN_STEPS)
    edges = [ordered[round(i * (len(ordered) - 1) / blocks)] for i in range(blocks + 1)]
    return [
        (end.at_s - start.at_s) / (end.step - start.step)
        for start, end in pairwise(edges)
        if end.at_s > start.at_s
    ]


def _peaks(text: str) -> Iterator[tuple[float, Literal["reserved", "allocated"]]]:
    for format in log_formats().memory:
        for match in re.finditer(format.pattern, text):
            found = match.groupdict()
            yield float(found["gib"]) if "gib" in found else float(found["mib"]) / MIB_PER_GIB, format.kind


def _exported_peaks(rows: Sequence[LogRow]) -> dict[str, float]:
    """By kind, in GiB: the columns of an export that are memory, W&B's and MLflow's own GPU metrics too."""
    peaks: dict[str, float] = {}
    for plain, name in _plain_names(rows).items():
        for memory in log_formats().exported_memory:
            if re.search(memory.column, plain):
                values = [value for row in rows if (value := _number(row.get(name))) > 0]
                peaks[memory.kind] = max(
                    peaks.get(memory.kind, 0.0), max(values, default=0.0) / memory.per_gib
                )
                break
    return {kind: peak for kind, peak in peaks.items() if peak}


def _exported(data: bytes, text: str) -> list[LogRow]:
    """The rows of a table or of an event file."""
    rows = list(_event_rows(data)) or _json_rows(text) or _csv_rows(text)
    if rows and {"key", "value", "step", "timestamp"} <= rows[0].keys():  # MLflow: a row per metric
        return [{str(row["key"]): row["value"], **row} for row in rows]
    return rows


def _json_rows(text: str) -> list[LogRow]:
    """JSON lines, or one array, as a W&B history is written."""
    try:
        if text.lstrip()[:1] == "[":
            found = json.loads(text)
        else:
            found = [json.loads(line) for line in text.splitlines() if line.strip()]
    except (ValueError, RecursionError):
        return []
    return [row for row in found if isinstance(row, dict)]


def _csv_rows(text: str) -> list[LogRow]:
    if "\0" in text:
        return []
    lines = text.splitlines()
    if lines and all(len(line.split()) == 3 for line in lines if line.strip()):
        # MLflow's file store: a file per metric, lines of timestamp in milliseconds, value, step.
        return [dict(zip(("timestamp", "value", "step"), line.split(), strict=True)) for line in lines]
    return [*csv.DictReader(io.StringIO(text))]


def plain_name(column: str) -> str:
    """`train_step_time_s` of `train/Step Time (s)`."""
    return re.sub(r"[^a-z0-9_]+", "_", column.lower()).rstrip("_")


def _plain_names(rows: Sequence[LogRow]) -> dict[str, str]:
    return {plain_name(name): name for row in reversed(rows) for name in row if name}


def _from_columns(rows: Sequence[LogRow]) -> list[float]:
    """Step times by the names of columns, or by the clock among them."""
    names, exports = _plain_names(rows), log_formats().exports

    def column(kind: str) -> str | None:
        """The first known name, alone or behind the name of a group."""
        for known in exports[kind]:
            for plain, name in names.items():
                if plain == known or plain.endswith((f"_{known}", f"/{known}")):
                    return name
        return None

    def values(name: str) -> list[float]:
        return [value for row in rows if (value := _number(row.get(name))) > 0]

    if seconds := column("seconds"):
        return _steady(values(seconds))
    if milliseconds := column("milliseconds"):
        return _steady([value / 1e3 for value in values(milliseconds)])
    if rate := column("steps_per_s"):
        return _steady([1 / value for value in values(rate)])
    at, step = column("clocks"), column("steps")
    if at is None or step is None:
        return []
    clock = [ClockReading(_number(row.get(step)), _number(row.get(at))) for row in rows]
    is_ms = any(reading.at_s > 1e11 for reading in clock)
    return _between(
        [ClockReading(n, t / 1e3 if is_ms else t) for n, t in clock if n == n and t == t]  # not NaN
    )


def _number(cell: Cell) -> float:
    try:
        return float(cell) if cell is not None else float("nan")
    except (TypeError, ValueError):
        return float("nan")


def _event_rows(data: bytes) -> Iterator[LogRow]:
    """The scalars of a TensorBoard event file: TFRecords of tensorflow.Event."""
    if len(data) < 16 or int.from_bytes(data[:8], "little") > len(data):
        return
    start = 0
    for _ in range(MAX_EVENTS):
        if start + 12 > len(data):
            return
        length = int.from_bytes(data[start : start + 8], "little")
        event = data[start + 12 : start + 12 + length]
        if len(event) < length:  # a file that is still written
            return
        start += 16 + length
        try:
            fields = list(_fields(event))
            at = next((struct.unpack("<d", value)[0] for number, value in fields if number == 1), 0.0)
            step = next((int.from_bytes(value, "little") for number, value in fields if number == 2), 0)
            scalars = {
                tag: value for number, summary in fields if number == 5 for tag, value in _scalars(summary)
            }
        except (IndexError, struct.error, UnicodeDecodeError):
            return
        if scalars:
            yield {"wall_time": at, "step": float(step), **scalars}


def _scalars(summary: bytes) -> Iterator[tuple[str, float]]:
    """Tags and values: simple_value, or a tensor of one float as newer writers have it."""
    for number, value in _fields(summary):
        if number == 1:
            parts = dict(_fields(value))
            tag = parts.get(1, b"").decode()
            if 2 in parts:
                yield tag, struct.unpack("<f", parts[2])[0]
            elif 8 in parts:
                tensor = dict(_fields(parts[8]))
                raw = tensor.get(5) or tensor.get(4)
                if raw and len(raw) == 4:
                    yield tag, struct.unpack("<f", raw)[0]


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Numbers and raw values of a protocol buffer."""
    start = 0

    def varint() -> int:
        nonlocal start
        value = shift = 0
        while True:
            byte = message[start]
            start += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while start < len(message):
        key = varint()
        kind = key & 7
        if kind == VARINT:
            yield key >> 3, (varint() & (2**64 - 1)).to_bytes(8, "little")
            continue
        size = {FIXED64: 8, FIXED32: 4}.get(kind) or varint()
        yield key >> 3, message[start : start + size]
        start += size
