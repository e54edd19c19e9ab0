"""Which reader takes a file, by name and by content."""

from pathlib import Path

import msgspec

from tools.hardware import Device
from tools.trace.decompress import ReadLimits, open_json
from tools.trace.errors import UnreadableTraceError
from tools.trace.kineto import read_kineto
from tools.trace.patterns import CommunicationPatterns
from tools.trace.rank_profile import FORMAT, RankProfile, profile_rank
from tools.trace.roofline import under_roof

_JSON_SUFFIXES = (".json", ".json.gz")
_SQLITE_SUFFIXES = (".sqlite", ".sqlite3")
XPLANE_SUFFIX = ".xplane.pb"
_OVERHEAD_SUFFIX = ".overhead.json"
"""Written beside summaries by `tools.profile`; no trace."""
_SUMMARY_MARK = FORMAT.encode()
_PEEK_BYTES = 256
_MAX_SUMMARY_BYTES = 256 << 20
_PART_BYTES = 1 << 20


def is_trace_name(name: str) -> bool:
    """Whether a file of this name is taken for a trace."""
    if name.startswith(".") or name.endswith(_OVERHEAD_SUFFIX):
        return False
    return name.endswith((*_JSON_SUFFIXES, *_SQLITE_SUFFIXES, XPLANE_SUFFIX))


def profile_file(
    path: Path,
    patterns: CommunicationPatterns,
    device: Device | None = None,
    limits: ReadLimits | None = None,
) -> RankProfile:
    """The profile of one rank from any format; raises UnreadableTraceError with the reason."""
    limits = limits or ReadLimits()
    if path.name.endswith(_SQLITE_SUFFIXES):
        from tools.trace.nsight import read_nsight

        return profile_rank(read_nsight(path), patterns, device)
    if path.name.endswith(XPLANE_SUFFIX):
        from tools.trace.xplane import read_xplane

        return profile_rank(read_xplane(path), patterns, device)
    if _is_summary(path, limits):
        profile = read_summary(path, limits)
        profile.roofline = under_roof(profile.roofline, device)
        return profile
    return profile_rank(read_kineto(path, limits), patterns, device)


def _is_summary(path: Path, limits: ReadLimits) -> bool:
    head = bytearray(_PEEK_BYTES)
    with open_json(path, limits) as source:
        source.fill(memoryview(head))
    return _SUMMARY_MARK in head


def read_summary(path: Path, limits: ReadLimits) -> RankProfile:
    """A profile written by `write_summary`."""
    content, part = bytearray(), bytearray(_PART_BYTES)
    with open_json(path, limits) as source:
        while count := source.fill(memoryview(part)):
            content += part[:count]
            if len(content) > _MAX_SUMMARY_BYTES:
                raise UnreadableTraceError(f"a summary has at most {_MAX_SUMMARY_BYTES >> 20} MiB")
    try:
        profile = msgspec.json.decode(content, type=RankProfile)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UnreadableTraceError(f"not a rank summary: {error}") from error
    profile.file = path.name
    return profile


def write_summary(profile: RankProfile, path: Path) -> None:
    """One rank's profile as JSON: kilobytes instead of the raw trace's megabytes."""
    path.write_bytes(msgspec.json.encode(profile))
