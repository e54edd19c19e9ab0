"""Trace JSON as batches of events: any layout and cut, gzip and its limits, and what is refused."""

import gzip
import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.trace import stream as batches
from tools.trace.events import TraceEvent
from tools.trace.record import UnreadableTraceError
from tools.trace.stream import EventStream, ReadLimits, open_json


def _read(folder: Path, text: str) -> tuple[list[str], EventStream[TraceEvent]]:
    path = folder / "trace.json"
    path.write_text(text)
    with open_json(path, ReadLimits()) as source:
        stream = EventStream(source, msgspec.json.Decoder(list[TraceEvent]).decode)
        return [event.name for batch in stream for event in batch], stream


@pytest.fixture(autouse=True)
def _small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """So small that every trace here crosses it."""
    monkeypatch.setattr(batches, "WINDOW_BYTES", 300)


def _events(count: int, **more: object) -> list[dict[str, object]]:
    return [{"ph": "X", "cat": "kernel", "name": f"k{i}", "ts": i, "dur": 1, **more} for i in range(count)]


def test_numbers_that_json_lacks_are_repaired_and_reported(tmp_path: Path) -> None:
    text = json.dumps({"traceEvents": _events(10, args={"rate": 5})}).replace('"rate": 5', '"rate": inf')
    names, stream = _read(tmp_path, text)
    assert (len(names), bool(stream.repaired)) == (10, True)


BRACKETS = 'ab"\\{}[],'
VALUES = st.recursive(
    st.integers() | st.text(BRACKETS) | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(BRACKETS, max_size=3), inner),
    max_leaves=12,
)
METADATA = st.dictionaries(st.text(BRACKETS, max_size=5), VALUES, max_size=3)
EVENTS = st.lists(st.fixed_dictionaries({"name": st.text(max_size=30), "args": VALUES}), max_size=25)


@settings(max_examples=80)
@given(EVENTS, METADATA, st.integers(20, 400), st.sampled_from([None, 0, 2]), st.booleans())
def test_events_and_metadata_come_back_as_written_however_windows_cut_them(
    tmp_path_factory: pytest.TempPathFactory,
    events: list[dict[str, object]],
    metadata: dict[str, object],
    window_bytes: int,
    indent: int | None,
    sort_keys: bool,
) -> None:
    trace = {**metadata, "traceEvents": events, "traceName": "t"}
    text = json.dumps(trace, indent=indent, sort_keys=sort_keys)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "WINDOW_BYTES", window_bytes)
        names, stream = _read(tmp_path_factory.mktemp("traces"), text)
    assert names == [event["name"] for event in events]
    assert stream.metadata == metadata | {"traceName": "t"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("hello", "not valid"),
        ('{"schemaVersion": 1}', "no traceEvents"),
        ('{"traceEvents": 5}', "no traceEvents"),
        ('{"traceEvents": [{"name": "a"}', "truncated"),
        ('{"traceEvents": [{"name": "a"}]', "truncated"),
        ('{"traceEvents": [{"name": "a"},]}', "not valid"),
        ('{"traceEvents": [{"name": 5}]}', "not valid"),
        ('{"traceEvents": [1, 2]}', "not valid"),
        ('{"traceEvents": [{"args": ' + "[" * 5000 + "]" * 5000 + "}]}", "too deep"),
        ('{"traceEvents": [{"name": "\\ud800"}]}', "not valid"),
    ],
)
def test_broken_json_is_refused_with_the_reason(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(UnreadableTraceError, match=reason):
        _read(tmp_path, text)


def test_an_endless_event_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "MAX_EVENT_BYTES", 5000)
    text = '{"traceEvents": [{"name": "' + "x" * 50_000 + '"}]}'
    with pytest.raises(UnreadableTraceError, match="larger than"):
        _read(tmp_path, text)


def test_many_keys_of_that_name_are_refused_without_decoding_what_stands_before_each(tmp_path: Path) -> None:
    """That took minutes for a kilobyte of gzip."""
    text = '{"a": [' + '{"traceEvents":[]},' * 20_000 + "1]}"
    with pytest.raises(UnreadableTraceError, match="no traceEvents"):
        _read(tmp_path, text)


def _read_bytes(path: Path, limits: ReadLimits | None = None, size: int = 1 << 20) -> bytes:
    buffer, parts = bytearray(size), []
    with open_json(path, limits or ReadLimits()) as source:
        while count := source.fill(memoryview(buffer)):
            parts.append(bytes(buffer[:count]))
    return b"".join(parts)


_PACKED = gzip.compress(bytes(range(256)) * 100)


@pytest.mark.parametrize(
    ("content", "limits", "reason"),
    [
        (_PACKED[:-20], ReadLimits(), "truncated"),
        (_PACKED[:-6] + bytes([_PACKED[-6] ^ 0xFF]) + _PACKED[-5:], ReadLimits(), "damaged"),
        (None, ReadLimits(), "cannot be opened"),
        (gzip.compress(b" " * 5_000_000), ReadLimits(expansion_free_bytes=1 << 20), "bomb"),
        (b" " * 3000, ReadLimits(max_json_bytes=1000), "GiB of JSON"),
    ],
)
def test_damaged_missing_and_oversized_files_are_refused(
    tmp_path: Path, content: bytes | None, limits: ReadLimits, reason: str
) -> None:
    path = tmp_path / "trace.json.gz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UnreadableTraceError, match=reason):
        _read_bytes(path, limits, size=100)
