"""Reads a folder of traces, one per rank, into rank profiles, several files at once in separate processes
with limits.

An unreadable file is listed with the reason and the rest is analysed.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from tools.errors import InputError
from tools.hardware import Device
from tools.scenario.spec import ClosedModel
from tools.trace.classify import CommunicationPatterns, load_patterns
from tools.trace.files import XPLANE_SUFFIX, is_trace_name, profile_file, profile_or_reason, write_summary
from tools.trace.isolate import Check, Outcome, ReaderLimits, read_isolated
from tools.trace.kineto import find_rank_in_name
from tools.trace.rank_profile import RankProfile
from tools.trace.record import UnreadableTraceError

FileProgress = Callable[[int, int], None]
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
    memory_bytes=_TEBIBYTE,
    base_bytes=_TEBIBYTE,
    profile_bytes=_TEBIBYTE,
    folder_bytes=_TEBIBYTE,
    cpu_s=3600,
    folder_s=86_400,
)


class UnreadableFile(ClosedModel):
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
        raise InputError("folder", str(folder), "must be a folder of traces or one trace file")
    for paths in (folder.iterdir(), folder.rglob("*")):
        files = sorted(path for path in paths if path.is_file() and is_trace_name(path.name))
        if files:
            # JAX writes each profile twice, as NAME.xplane.pb and for a viewer as NAME.trace.json.gz.
            stems = [
                str(path).removesuffix(XPLANE_SUFFIX) for path in files if path.name.endswith(XPLANE_SUFFIX)
            ]
            twins = {Path(f"{stem}.trace.json.gz") for stem in stems}
            return [path for path in files if path not in twins]
    raise InputError("folder", str(folder), "has no *.json, *.json.gz, *.sqlite or *.xplane.pb file")


def profile_folder(
    folder: Path,
    patterns: CommunicationPatterns | None = None,
    device: Device | None = None,
    progress: FileProgress | None = None,
    workers: int | None = None,
    limits: ReaderLimits | None = UNTRUSTED,
    check: Check | None = None,
    keep_timeline: KeepTimeline | None = None,
) -> FolderProfile:
    """Reads and analyses every rank of a folder; raises InputError when there is nothing to read.

    `limits` None is for the user's own files: large ones may take what memory there is, small ones are read
    in this process.
    """
    files, patterns = find_trace_files(folder), patterns or load_patterns()
    workers = min(workers or os.cpu_count() or 1, len(files))
    is_small = sum(path.stat().st_size for path in files) < _PARALLEL_FROM_BYTES
    outcomes: Iterator[tuple[Path, Outcome]]
    if limits is None and (workers == 1 or is_small):
        outcomes = ((path, profile_or_reason(path, patterns, device)) for path in files)
    else:
        timelines = files[:MAX_TIMELINES] if keep_timeline else ()
        workers = 1 if is_small else workers
        outcomes = read_isolated(files, patterns, device, limits or OWN_FILES, workers, check, timelines)
    profiles: dict[Path, RankProfile] = {}
    unreadable: list[UnreadableFile] = []
    for path, outcome in outcomes:
        if isinstance(outcome, bytes):
            if keep_timeline is not None:
                keep_timeline(path.name, outcome)
            continue
        if isinstance(outcome, RankProfile):
            profiles[path] = outcome
        else:
            unreadable.append(UnreadableFile(file=path.name, reason=outcome))
        if progress is not None:
            progress(len(profiles) + len(unreadable), len(files))
    unreadable.sort(key=lambda file: (file.file, file.reason))
    ranks = _number_ranks([profiles[path] for path in files if path in profiles])
    return FolderProfile(str(folder), ranks, unreadable)


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
        if profile.rank >= 0:
            profile.notes.append(f"another file is rank {profile.rank} too: numbered by order")
        profile.rank = next(number for number in range(len(taken) + 1) if number not in taken)
        profile.rank_source = "order"
        taken.add(profile.rank)
    return sorted(profiles, key=lambda profile: profile.rank)


def read_timeline(path: Path, limits: ReaderLimits = UNTRUSTED) -> bytes:
    """Packed and gzipped, by a process with limits; raises UnreadableTraceError with the reason."""
    with closing(read_isolated([path], load_patterns(), None, limits, 1, timelines=[path])) as outcomes:
        _, outcome = next(outcomes)  # the profile is not waited for
    if isinstance(outcome, bytes):
        return outcome
    raise UnreadableTraceError(outcome if isinstance(outcome, str) else "a summary has no events to draw")


def summarise_file(trace: Path, summary: Path) -> bool:
    """For `asap_client.capture`, which finds it as an entry point: whether the trace could be summarised."""
    try:
        write_summary(profile_file(trace, load_patterns()), summary)
    except UnreadableTraceError:
        return False
    return True
