"""One trace file: the reader is chosen by its name and content, and its profile may be kept as a summary."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from tools.hardware import Device
from tools.trace.classify import CommunicationPatterns
from tools.trace.kineto import paused_gc, read_kineto
from tools.trace.rank_profile import FORMAT, NO_WORK, RankProfile, profile_rank
from tools.trace.record import RankTrace, UnreadableTraceError
from tools.trace.roofline import under_roof
from tools.trace.stream import ReadLimits, open_json

_JSON_SUFFIXES = (".json", ".json.gz")
_SQLITE_SUFFIXES = (".sqlite", ".sqlite3")
XPLANE_SUFFIX = ".xplane.pb"
_OVERHEAD_SUFFIX = ".overhead.json"
"""Written beside summaries by `asap_client.capture`; no trace."""
_PEEK_BYTES = 256
_MAX_SUMMARY_BYTES = 256 << 20
_PART_BYTES = 1 << 20


def is_trace_name(name: str) -> bool:
    """Whether a file of this name is taken for a trace."""
    if name.startswith(".") or name.endswith(_OVERHEAD_SUFFIX):
        return False
    return name.endswith((*_JSON_SUFFIXES, *_SQLITE_SUFFIXES, XPLANE_SUFFIX))


def read_trace(path: Path, limits: ReadLimits | None = None) -> RankTrace:
    """The events of one rank from any format; raises UnreadableTraceError with the reason."""
    if path.name.endswith(_SQLITE_SUFFIXES):
        from tools.trace.nsight import read_nsight

        return read_nsight(path)
    if path.name.endswith(XPLANE_SUFFIX):
        from tools.trace.xplane import read_xplane

        return read_xplane(path)
    return read_kineto(path, limits)


@paused_gc()
def profile_file(
    path: Path,
    patterns: CommunicationPatterns,
    device: Device | None = None,
    limits: ReadLimits | None = None,
    seen: Callable[[RankTrace], None] | None = None,
) -> RankProfile:
    """The profile of one rank, from any format or a summary; raises UnreadableTraceError with the reason.

    `seen` is called with the events of a file that has them, before they are analysed.
    """
    limits = limits or ReadLimits()
    if path.name.endswith(_JSON_SUFFIXES):
        head = bytearray(_PEEK_BYTES)
        with open_json(path, limits) as source:
            source.fill(memoryview(head))
        if FORMAT.encode() in head:
            profile = _read_summary(path, limits)
            profile.roofline = under_roof(profile.roofline, device)
            return profile
    trace = read_trace(path, limits)
    if seen is not None:
        seen(trace)
    return profile_rank(trace, patterns, device)


def profile_or_reason(
    path: Path,
    patterns: CommunicationPatterns,
    device: Device | None,
    seen: Callable[[RankTrace], None] | None = None,
) -> RankProfile | str:
    try:
        profile = profile_file(path, patterns, device, seen=seen)
    except UnreadableTraceError as error:
        return str(error)
    return profile if profile.num_work_events else NO_WORK


def _read_summary(path: Path, limits: ReadLimits) -> RankProfile:
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
