"""Reads a folder of traces, one per rank, into rank profiles, several files at once in separate processes
with limits.

The reader is chosen by name and content; an unreadable file is listed with the reason and the rest is
analysed.
"""

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tools.errors import InputError
from tools.hardware import Device
from tools.scenario.spec import Result
from tools.trace.classify import CommunicationPatterns, load_patterns
from tools.trace.isolate import Check, Outcome, ReaderLimits, Timeline, read_isolated
from tools.trace.kineto import find_rank_in_name, paused_gc, read_kineto
from tools.trace.rank_profile import FORMAT, NO_WORK, RankProfile, profile_rank
from tools.trace.record import RankTrace, UnreadableTraceError
from tools.trace.roofline import under_roof
from tools.trace.stream import ReadLimits, open_json

_JSON_SUFFIXES = (".json", ".json.gz")
_SQLITE_SUFFIXES = (".sqlite", ".sqlite3")
XPLANE_SUFFIX = ".xplane.pb"
_OVERHEAD_SUFFIX = ".overhead.json"
"""Written beside summaries by `asap_client.capture`; no trace."""
_SUMMARY_MARK = FORMAT.encode()
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
    return read_kineto(path, limits or ReadLimits())


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
    if path.name.endswith(_JSON_SUFFIXES) and _is_summary(path, limits):
        profile = read_summary(path, limits)
        profile.roofline = under_roof(profile.roofline, device)
        return profile
    trace = read_trace(path, limits)
    if seen is not None:
        seen(trace)
    return profile_rank(trace, patterns, device)


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


def summarise_file(trace: Path, summary: Path) -> bool:
    """For `asap_client.capture`, which finds it as an entry point: whether the trace could be summarised."""
    try:
        write_summary(profile_file(trace, load_patterns()), summary)
    except UnreadableTraceError:
        return False
    return True


Progress = Callable[[int, int], None]
"""Called with how many files are done and how many there are."""
KeepTimeline = Callable[[str, bytes], None]
"""Called with the name of a file and its timeline, as soon as the file is read."""
MAX_TIMELINES = 16
"""Kept of a folder: those of its first files, which a page shows first."""

_PARALLEL_FROM_BYTES = 4 << 20
"""A process takes longer to start than this much gzip takes to read."""
UNTRUSTED = ReaderLimits()
_TEBIBYTE = 1 << 40
OWN_FILES = ReaderLimits(
    memory_bytes=_TEBIBYTE, profile_bytes=_TEBIBYTE, folder_bytes=_TEBIBYTE, cpu_s=3600, folder_s=86_400
)


class UnreadableFile(Result):
    file: str
    reason: str


@dataclass
class FolderProfile:
    """All ranks of a folder that could be read, in order of rank, and the files that could not."""

    folder: str
    ranks: list[RankProfile] = field(default_factory=list)
    unreadable: list[UnreadableFile] = field(default_factory=list)


def find_trace_files(folder: Path) -> list[Path]:
    """The folder's traces by name; those of its sub-folders when it has none itself."""
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        raise InputError("DIR", str(folder), "must be a folder of traces or one trace file")
    for paths in (folder.iterdir(), folder.rglob("*")):
        files = sorted(path for path in paths if path.is_file() and is_trace_name(path.name))
        if files:
            return _without_twins(files)
    raise InputError("DIR", str(folder), "has no *.json, *.json.gz, *.sqlite or *.xplane.pb file")


def _without_twins(files: list[Path]) -> list[Path]:
    """JAX writes each profile twice, as NAME.xplane.pb and for a viewer as NAME.trace.json.gz."""
    twins = {
        path.with_name(path.name.removesuffix(XPLANE_SUFFIX) + ".trace.json.gz")
        for path in files
        if path.name.endswith(XPLANE_SUFFIX)
    }
    return [path for path in files if path not in twins]


def profile_folder(
    folder: Path,
    patterns: CommunicationPatterns | None = None,
    device: Device | None = None,
    progress: Progress | None = None,
    workers: int | None = None,
    limits: ReaderLimits | None = UNTRUSTED,
    check: Check | None = None,
    keep_timeline: KeepTimeline | None = None,
) -> FolderProfile:
    """Reads and analyses every rank of a folder; raises InputError when there is nothing to read.

    `limits` None is for the user's own files: large ones may take what memory there is, small ones are read
    in this process.
    """
    files = find_trace_files(folder)
    result = FolderProfile(str(folder))
    profiles: dict[Path, RankProfile] = {}
    timelines = files[:MAX_TIMELINES] if keep_timeline else ()
    for path, outcome in _profile_all(
        files, patterns or load_patterns(), device, workers, limits, check, timelines
    ):
        if isinstance(outcome, Timeline):
            if keep_timeline is not None:
                keep_timeline(path.name, outcome.packed)
            continue
        if isinstance(outcome, RankProfile):
            profiles[path] = outcome
        else:
            result.unreadable.append(UnreadableFile(file=path.name, reason=outcome))
        if progress is not None:
            progress(len(profiles) + len(result.unreadable), len(files))
    result.ranks = _number_ranks([profiles[path] for path in files if path in profiles])
    result.unreadable.sort(key=lambda unreadable: (unreadable.file, unreadable.reason))
    return result


def _profile_all(
    files: list[Path],
    patterns: CommunicationPatterns,
    device: Device | None,
    workers: int | None,
    limits: ReaderLimits | None,
    check: Check | None,
    timelines: Collection[Path],
) -> Iterator[tuple[Path, Outcome]]:
    workers = min(workers or os.cpu_count() or 1, len(files))
    is_small = sum(path.stat().st_size for path in files) < _PARALLEL_FROM_BYTES
    if limits is None and (workers == 1 or is_small):
        for path in files:
            yield path, profile_or_reason(path, patterns, device)
        return
    if is_small:
        workers = 1
    yield from read_isolated(files, patterns, device, limits or OWN_FILES, workers, check, timelines)


def read_timeline(path: Path, limits: ReaderLimits = UNTRUSTED) -> bytes:
    """Packed and gzipped, by a process with limits; raises UnreadableTraceError with the reason."""
    with closing(read_isolated([path], load_patterns(), None, limits, 1, timelines=[path])) as outcomes:
        _, outcome = next(outcomes)  # the profile is not waited for
    if isinstance(outcome, Timeline):
        return outcome.packed
    raise UnreadableTraceError(outcome if isinstance(outcome, str) else "a summary has no events to draw")


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


def _number_ranks(profiles: list[RankProfile]) -> list[RankProfile]:
    """Every profile gets a rank of its own; `rank_source` and a note say how."""
    taken: set[int] = set()
    unnumbered = []
    for profile in profiles:
        if profile.rank < 0 and (named := find_rank_in_name(profile.file)) is not None:
            profile.rank, profile.rank_source = named, "file name"
        if profile.rank < 0 or profile.rank in taken:
            unnumbered.append(profile)
        else:
            taken.add(profile.rank)
    for profile in unnumbered:
        _number_by_order(profile, taken)
    return sorted(profiles, key=lambda profile: profile.rank)


def _number_by_order(profile: RankProfile, taken: set[int]) -> None:
    if profile.rank >= 0:
        profile.notes.append(f"another file is rank {profile.rank} too: numbered by order")
    profile.rank = next(number for number in range(len(taken) + 1) if number not in taken)
    profile.rank_source = "order"
    taken.add(profile.rank)
