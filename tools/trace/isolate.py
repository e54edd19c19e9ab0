"""Reads trace files in processes of their own: a hostile or broken file can neither block, fill nor crash the
process that wants it read.

Each reader process has limits of CPU time, memory, output and open files, holds none of the parent's secrets,
and dies with it. Profiles come back as msgpack of a fixed type, never as pickled objects; a file whose
timeline is wanted too is read once for both, and its timeline comes first.
"""

import ctypes
import os
import pickle
import resource
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import IO, cast

import msgspec
from isal import igzip

from tools.hardware import Device
from tools.trace.classify import CommunicationPatterns
from tools.trace.files import profile_or_reason
from tools.trace.rank_profile import RankProfile
from tools.trace.record import RankTrace
from tools.trace.timeline import pack

Check = Callable[[], None]
"""Called several times per second while files are read; if it raises, the readers are killed."""
Outcome = RankProfile | bytes | str
"""A file gives its packed and gzipped timeline if wanted, then its profile or why there is none."""
GIB = 1 << 30
MOST_MEMORY_BYTES = 2 * GIB
MEGABYTE = 1e6
POLL_S = 0.2
NICE = 5
"""Readers yield to the process that answers requests and renews leases."""
_HEADER = struct.Struct("<BQ")
"""Precedes each message: its kind and its size."""
_PLAIN, _TIMELINE = 0, 1
_START = struct.Struct("<Q")
_PR_SET_PDEATHSIG = 1
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""Nothing of the parent's, which may hold keys; more threads would only reserve memory."""


@dataclass(frozen=True)
class ReaderLimits:
    """What reading one file may take; the rest of its folder is read all the same."""

    memory_bytes: int = 3 * GIB // 2
    """Limits address space, so that resident memory stays below."""
    base_bytes: int = 256 << 20
    bytes_per_byte: int = 24
    """Memory per byte of a file; real traces take a few, compressed ones ten."""
    cpu_s: float = 5.0
    cpu_s_per_megabyte: float = 1.0
    """Real traces take about a twentieth of this, compressed ones a fifth."""
    profile_bytes: int = 64 << 20
    """Limits a timeline too."""
    folder_bytes: int = 512 << 20
    """Profiles of one folder together, in the process that reads them."""
    folder_s: float = 1800.0
    open_files: int = 32

    def file_memory_bytes(self, path: Path) -> int:
        return min(self.memory_bytes, self.base_bytes + self.bytes_per_byte * path.stat().st_size)

    def file_cpu_s(self, path: Path) -> int:
        return int(self.cpu_s + path.stat().st_size / MEGABYTE * self.cpu_s_per_megabyte)


class _SharedMemory:
    """What the readers of this process may take together. Folders that have none get it in turn."""

    def __init__(self) -> None:
        self.left_bytes, self._lock = MOST_MEMORY_BYTES, Lock()
        self.queue: dict[object, None] = {}

    def take(self, folder: object, taken_bytes: int, waits: bool) -> bool:
        with self._lock:
            if waits:
                self.queue.setdefault(folder)
            is_given = taken_bytes <= self.left_bytes and next(iter(self.queue), folder) is folder
            if is_given:
                self.left_bytes -= taken_bytes
                self.queue.pop(folder, None)
            return is_given

    def give_back(self, taken_bytes: int, folder: object = None) -> None:
        with self._lock:
            self.left_bytes += taken_bytes
            self.queue.pop(folder, None)


_memory = _SharedMemory()


class _Reader:
    """One process, and the file it is reading."""

    def __init__(self, start: bytes, taken_bytes: int) -> None:
        self.path: Path | None = None
        self.taken_bytes = taken_bytes
        self.received = bytearray()
        self.profile_bytes = 0
        """Size of the last profile."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
            start_new_session=True,  # Ctrl-C and SIGTERM are the parent's to handle
        )
        self.input, self.output = cast(IO[bytes], self.process.stdin), cast(IO[bytes], self.process.stdout)
        self.input.write(_START.pack(len(start)) + start)
        self.input.flush()

    def start(self, path: Path, has_timeline: bool) -> None:
        self.path, self.received = path, bytearray()
        text = os.fsencode(path.absolute())
        with suppress(BrokenPipeError):  # seen as the end of its output
            self.input.write(_HEADER.pack(_TIMELINE if has_timeline else _PLAIN, len(text)) + text)
            self.input.flush()

    def receive(self, path: Path, limits: ReaderLimits) -> list[Outcome]:
        """What has arrived whole: a timeline, and at last the profile or the reason why there is none."""
        part = os.read(self.output.fileno(), 1 << 20)
        if not part:
            status = self.process.wait()
            if -status in (signal.SIGXCPU, signal.SIGALRM):
                return [f"takes more than {limits.file_cpu_s(path)} s to read"]
            if -status == signal.SIGKILL:
                return ["the process that read it was killed (out of memory?)"]
            cause = signal.Signals(-status).name if status < 0 else status
            return [f"the process that read it died ({cause})"]
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
                outcomes.append(content)
            else:
                self.profile_bytes = size
                outcomes.append(msgspec.msgpack.decode(content, type=RankProfile | str))
        return outcomes

    def kill(self) -> None:
        """Idempotent."""
        _memory.give_back(self.taken_bytes)
        self.taken_bytes = 0
        self.process.kill()
        self.process.wait()
        for pipe in (self.input, self.output):
            with suppress(BrokenPipeError):
                pipe.close()


def read_isolated(  # noqa: C901 - one loop over what may happen to a reader
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
    folder, needed_bytes = object(), max(map(limits.file_memory_bytes, files))
    if needed_bytes > MOST_MEMORY_BYTES:  # a user's own files, which may take what there is
        needed_bytes = 0
    ends_at, total_bytes = time.monotonic() + limits.folder_s, 0
    try:
        while waiting or any(reader.path for reader in readers):
            busy = [reader for reader in readers if reader.path]
            if _memory.queue:  # another folder's turn
                for reader in set(readers) - set(busy):
                    reader.kill()
                readers = busy
            wanted = min(workers, len(busy) + len(waiting))
            while len(readers) < wanted and _memory.take(folder, needed_bytes, waits=not readers):
                readers.append(_Reader(start, needed_bytes))
            for reader in readers:
                if waiting and reader.path is None:
                    path = waiting.pop()
                    reader.start(path, path in timelines)
            if check is not None:
                check()
            for reader, path in _wait(readers):
                outcomes = reader.receive(path, limits)
                for outcome in outcomes:
                    yield path, outcome
                if not outcomes or isinstance(outcomes[-1], bytes):
                    continue
                total_bytes += reader.profile_bytes
                reader.path = None
                if reader.process.poll() is not None:
                    reader.kill()
                    readers.remove(reader)
            reason = None
            if time.monotonic() > ends_at:
                reason = f"the folder takes more than {limits.folder_s:.0f} s"
            if total_bytes > limits.folder_bytes:
                reason = f"the folder's profiles take more than {limits.folder_bytes >> 20} MiB"
            if reason:
                for path in (*(reader.path for reader in readers if reader.path), *reversed(waiting)):
                    yield path, f"not read: {reason}"
                return
    finally:
        _memory.give_back(0, folder)
        for reader in readers:
            reader.kill()


def _wait(readers: Sequence[_Reader]) -> list[tuple[_Reader, Path]]:
    """The readers that have something to say, for which it waits a moment."""
    busy = {reader.output.fileno(): (reader, reader.path) for reader in readers if reader.path}
    poller = select.poll()
    for descriptor in busy:
        poller.register(descriptor, select.POLLIN | select.POLLHUP)
    return [busy[descriptor] for descriptor, _ in poller.poll(POLL_S * 1000)]


def main() -> None:
    """A reader process: paths come in on standard input, profiles go out on standard output."""
    parent, own = os.getppid(), os.dup(1)
    os.dup2(2, 1)  # a library that prints must not break the protocol
    if sys.platform == "linux":  # a parent that is killed cannot end its readers
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    source = sys.stdin.buffer
    (size,) = _START.unpack(source.read(_START.size))
    patterns, device, limits = pickle.loads(source.read(size))
    os.nice(NICE)
    for kind, most in (
        (resource.RLIMIT_AS, limits.memory_bytes),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (most, most))
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
            # Also of time, since a file on a dead file server takes no CPU time at all.
            file_s, used = limits.file_cpu_s(path), resource.getrusage(resource.RUSAGE_SELF)
            cpu_s = int(used.ru_utime + used.ru_stime) + 1 + file_s
            resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, resource.RLIM_INFINITY))
            signal.alarm(60 + 10 * file_s)
            memory_bytes = limits.file_memory_bytes(path)
            resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, limits.memory_bytes))
            try:
                outcome = profile_or_reason(
                    path, patterns, device, send_timeline if kind == _TIMELINE else None
                )
                content = msgspec.msgpack.encode(outcome)
            except MemoryError:
                reason = f"takes more than {memory_bytes / GIB:.3g} GiB of memory to read"
                content = msgspec.msgpack.encode(reason)
            send(_PLAIN, content)


if __name__ == "__main__":
    main()
