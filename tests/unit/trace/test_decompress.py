"""Gzip by content, damage and size limits."""

import gzip
from pathlib import Path

import pytest

from tools.trace.record import UnreadableTraceError
from tools.trace.stream import ReadLimits, open_json


def _read(path: Path, limits: ReadLimits | None = None, size: int = 1 << 20) -> bytes:
    buffer, parts = bytearray(size), []
    with open_json(path, limits or ReadLimits()) as source:
        while count := source.fill(memoryview(buffer)):
            parts.append(bytes(buffer[:count]))
    return b"".join(parts)


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
@pytest.mark.parametrize("packed", [False, True])
def test_content_not_name_says_what_is_gzip(tmp_path: Path, name: str, packed: bool) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(b"[1]" * 1000) if packed else b"[1]" * 1000)
    assert _read(path, size=64) == b"[1]" * 1000


def test_several_gzip_members_are_one_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(b"ab") + gzip.compress(b"cd"))
    assert _read(path) == b"abcd"


def test_truncated_gzip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(bytes(range(256)) * 100)[:-20])
    with pytest.raises(UnreadableTraceError, match="truncated"):
        _read(path)


def test_damaged_gzip_is_refused(tmp_path: Path) -> None:
    content = bytearray(gzip.compress(bytes(range(256)) * 100))
    content[-6] ^= 0xFF
    path = tmp_path / "trace.json.gz"
    path.write_bytes(content)
    with pytest.raises(UnreadableTraceError, match="damaged"):
        _read(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableTraceError, match="cannot be opened"):
        _read(tmp_path / "absent.json")


def test_a_ratio_no_trace_has_is_a_bomb(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(b" " * 5_000_000))
    with pytest.raises(UnreadableTraceError, match="bomb"):
        _read(path, ReadLimits(expansion_free_bytes=1 << 20))


def test_more_json_than_allowed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(b" " * 3000)
    with pytest.raises(UnreadableTraceError, match="GiB of JSON"):
        _read(path, ReadLimits(max_json_bytes=1000), size=100)
