"""Reads trace files in processes of their own: a hostile or broken file can neither block, fill nor crash the
process that wants it read.

Each reader process has limits of CPU time, memory, output and open files, holds none of the parent's secrets,
and dies with it. Profiles come back as msgpack of a fixed type, never as pickled objects; a file whose
timeline is wanted too is read once for both, and its timeline comes first.
"""

import os
import pickle
import resource
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec
from isal import igzip

from tools.hardware import Device
from tools.trace.classify import CommunicationPatterns
from tools.trace.rank_profile import RankProfile
from tools.trace.record import RankTrace

Check = Callable[[], None]
"""Called several times per second while files are read; if it raises, the readers are killed."""

GIB = 1 << 30
MEGABYTE = 1e6
POLL_S = 0.2
NICE = 5
"""Readers yield to the process that answers requests and renews leases."""
_HEADER = struct.Struct("<BQ")
"""Of each message: its kind and its size."""
_PLAIN, _TIMELINE = 0, 1
_START = struct.Struct("<Q")
_PR_SET_PDEATHSIG = 1
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""Nothing of the parent's, which may hold keys; more threads would only reserve memory."""


@dataclass(frozen=True)
class ReaderLimits:
    """What reading one file may take; the rest of its folder is read all the same."""

    memory_bytes: int = 3 * GIB // 2
    """Of address space, so that resident memory stays below."""
    cpu_s: float = 5.0
    cpu_s_per_megabyte: float = 1.0
    """Real traces take about a twentieth of this, compressed ones a fifth."""
    profile_bytes: int = 64 << 20
    """Of a timeline too."""
    folder_bytes: int = 512 << 20
    """Profiles of one folder together, in the process that reads them."""
    folder_s: float = 1800.0
    open_files: int = 32

    def file_cpu_s(self, path: Path) -> int:
        return int(self.cpu_s + path.stat().st_size / MEGABYTE * self.cpu_s_per_megabyte)


@dataclass(frozen=True)
class Timeline:
    """Of one file, as timeline.py packs it, gzipped."""

    packed: bytes


Outcome = RankProfile | Timeline | str
"""A reason if it is a text. A timeline is followed by the file's other outcome."""


@dataclass
class _Reader:
    """One process, and the file it is reading."""

    process: subprocess.Popen[bytes]
    path: Path | None = None
    received: bytearray | None = None
    profile_bytes: int = 0
    """Of the last profile."""

    @property
    def output(self) -> BinaryIO:
        assert self.process.stdout is not None
        return self.process.stdout  # type: ignore[return-value]

    def start(self, path: Path, has_timeline: bool) -> None:
        assert self.process.stdin is not None
        self.path, self.received = path, bytearray()
        text = os.fsencode(path.absolute())
        with suppress(BrokenPipeError):  # seen as the end of its output
            self.process.stdin.write(_HEADER.pack(_TIMELINE if has_timeline else _PLAIN, len(text)) + text)
            self.process.stdin.flush()

    def receive(self, limits: ReaderLimits) -> "list[Outcome]":
        """What has arrived whole: a timeline, and at last the profile or the reason why there is none."""
        assert self.received is not None
        assert self.path is not None
        part = os.read(self.output.fileno(), 1 << 20)
        if not part:
            return [_cause_of_death(self.process.wait(), limits, self.path)]
        self.received += part
        outcomes: list[Outcome] = []
        while len(self.received) >= _HEADER.size:
            kind, size = _HEADER.unpack_from(self.received)
            if size > limits.profile_bytes:
                self.kill()
                return [*outcomes, f"its profile takes more than {limits.profile_bytes >> 20} MiB"]
            end = _HEADER.size + size
            if len(self.received) < end:
                break
            content = bytes(self.received[_HEADER.size : end])
            del self.received[:end]
            if kind == _TIMELINE:
                outcomes.append(Timeline(content))
            else:
                self.profile_bytes = size
                outcomes.append(msgspec.msgpack.decode(content, type=RankProfile | str))
        return outcomes

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()


def read_isolated(
    files: Sequence[Path],
    patterns: CommunicationPatterns,
    device: Device | None,
    limits: ReaderLimits,
    workers: int,
    check: Check | None = None,
    timelines: Collection[Path] = (),
) -> Generator[tuple[Path, Outcome]]:
    """Each file with its profile or the reason why there is none, as they are read."""
    start = pickle.dumps((patterns, device, limits))
    waiting = list(reversed(files))
    readers: list[_Reader] = []
    ends_at, total_bytes = time.monotonic() + limits.folder_s, 0
    try:
        while waiting or any(reader.path for reader in readers):
            _assign(readers, waiting, workers, start, timelines)
            if check is not None:
                check()
            if time.monotonic() > ends_at:
                yield from _given_up(readers, waiting, f"the folder takes more than {limits.folder_s:.0f} s")
                return
            for reader in _ready(readers):
                outcomes = reader.receive(limits)
                assert reader.path is not None
                for outcome in outcomes:
                    yield reader.path, outcome
                if not outcomes or isinstance(outcomes[-1], Timeline):
                    continue
                total_bytes += reader.profile_bytes
                reader.path = None
                if reader.process.poll() is not None:
                    reader.kill()
                    readers.remove(reader)
            if total_bytes > limits.folder_bytes:
                reason = f"the folder's profiles take more than {limits.folder_bytes >> 20} MiB"
                yield from _given_up(readers, waiting, reason)
                return
    finally:
        for reader in readers:
            reader.kill()


def _assign(
    readers: list[_Reader], waiting: list[Path], workers: int, start: bytes, timelines: Collection[Path]
) -> None:
    while waiting and len(readers) < workers:
        readers.append(_Reader(_spawn(start)))
    for reader in readers:
        if waiting and reader.path is None:
            path = waiting.pop()
            reader.start(path, path in timelines)


def _ready(readers: Sequence[_Reader]) -> list[_Reader]:
    busy = {reader.output.fileno(): reader for reader in readers if reader.path is not None}
    poller = select.poll()
    for descriptor in busy:
        poller.register(descriptor, select.POLLIN | select.POLLHUP)
    return [busy[descriptor] for descriptor, _ in poller.poll(POLL_S * 1000)]


def _given_up(
    readers: Sequence[_Reader], waiting: Sequence[Path], reason: str
) -> Iterator[tuple[Path, Outcome]]:
    for path in (*(reader.path for reader in readers if reader.path), *reversed(waiting)):
        yield path, f"not read: {reason}"


def _spawn(start: bytes) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
        start_new_session=True,  # Ctrl-C and SIGTERM are the parent's to handle
    )
    assert process.stdin is not None
    process.stdin.write(_START.pack(len(start)) + start)
    process.stdin.flush()
    return process


def _cause_of_death(status: int, limits: ReaderLimits, path: Path) -> str:
    if -status in (signal.SIGXCPU, signal.SIGALRM):
        return f"takes more than {limits.file_cpu_s(path)} s to read"
    if -status == signal.SIGKILL:
        return "the process that read it was killed (out of memory?)"
    return f"the process that read it died ({signal.Signals(-status).name if status < 0 else status})"


def main() -> None:
    """A reader process: paths come in on standard input, profiles go out on standard output."""
    parent, own = os.getppid(), os.dup(1)
    os.dup2(2, 1)  # a library that prints must not break the protocol
    _die_with(parent)
    source = sys.stdin.buffer
    (size,) = _START.unpack(source.read(_START.size))
    patterns, device, limits = pickle.loads(source.read(size))
    from tools.trace.folder import profile_or_reason
    from tools.trace.timeline import pack

    _limit_process(limits)
    with os.fdopen(own, "wb") as target:

        def send(kind: int, content: bytes) -> None:
            target.write(_HEADER.pack(kind, len(content)) + content)
            target.flush()

        def send_timeline(trace: RankTrace) -> None:
            with suppress(MemoryError):  # the profile may take less
                packed = igzip.compress(pack(trace), 1, mtime=0)
                if len(packed) <= limits.profile_bytes:
                    send(_TIMELINE, packed)

        while header := source.read(_HEADER.size):
            kind, size = _HEADER.unpack(header)
            path = Path(os.fsdecode(source.read(size)))
            _limit_cpu(limits.file_cpu_s(path))
            try:
                outcome = profile_or_reason(
                    path, patterns, device, send_timeline if kind == _TIMELINE else None
                )
                content = msgspec.msgpack.encode(outcome)
            except MemoryError:
                reason = f"takes more than {limits.memory_bytes / GIB:.3g} GiB of memory to read"
                content = msgspec.msgpack.encode(reason)
            send(_PLAIN, content)


def _die_with(parent: int) -> None:
    """A parent that is killed cannot end its readers."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _limit_process(limits: ReaderLimits) -> None:
    os.nice(NICE)
    resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits.open_files, limits.open_files))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _limit_cpu(file_s: int) -> None:
    """Of this file; also of time, since a file on a dead file server takes no CPU time at all."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = int(used.ru_utime + used.ru_stime) + 1 + file_s
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, resource.RLIM_INFINITY))
    signal.alarm(60 + 10 * file_s)


if __name__ == "__main__":
    main()
