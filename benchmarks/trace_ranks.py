"""How long the traces of many ranks take to a diagnosis by `asap diagnose DIR`, and how much memory.

    python -m benchmarks.trace_ranks [--ranks 64] [--megabytes 100] [--workers 2] [--folder DIR] [--record]

The traces are a real recording of eight ranks (Megatron-LM, tensor parallel), its step repeated until a file
holds that much JSON: times, step numbers, correlations and ids move on, all else stays as kineto wrote it.
The made-up trace of `trace.py` stands in if the recording is not there. --folder keeps the files for the next
run.

CPU time is that of the command and of its readers; memory is the sum over these processes, shared pages
counted once. On a shared machine the wall clock says little: the last line has what it would be if the
readers had their cores to themselves.
"""

import argparse
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from isal import igzip

from benchmarks.results import compare
from benchmarks.trace import made_up_trace
from service.cli.parser import positive_number

REPO = Path(__file__).resolve().parents[1]
RECORDING = REPO.parent / "shared" / "traces" / "megatron_tp8"
GIB = 1 << 30
BAR_SIZE = (64, 100, 2)
"""Ranks, megabytes and readers that the bar speaks of."""
SAMPLE_S = 0.1
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_MOVES = re.compile(rb'("ts": |"correlation": |"External id": |"id": |"ProfilerStep#)(\d+)')
"""Time, ids and step number: what differs from one step to the next."""
_DISTRIBUTED = re.compile(rb'"rank": \d+, "world_size": \d+')
_NAMES = re.compile(rb',\s*\{\s*"name": "process_name"')
"""The names of processes and threads stand once, after all steps."""
_GAP_US = 1000
_ID_SHIFT = 1_000_000

_DIAGNOSE = """
import resource, sys
from service.cli.main import main
code = main(["diagnose", *sys.argv[1:]])
used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(*(u.ru_utime + u.ru_stime for u in used), file=sys.stderr)
sys.exit(code)
"""


@dataclass(frozen=True)
class Template:
    """One rank's trace with a gap for each number that moves on."""

    head: bytes
    step: bytes
    tail: bytes
    numbers: list[int]
    shifts: list[int]
    """By how much each number grows from one step to the next."""

    @classmethod
    def read(cls, path: Path) -> "Template":
        text = gzip.decompress(path.read_bytes())
        opening, names = _EVENTS.search(text), _NAMES.search(text)
        assert opening is not None
        end = names.start() if names else text.rindex(b"]")
        step = text[opening.end() : end]
        found = [(kind, int(number)) for kind, number in _MOVES.findall(step)]
        times = [number for kind, number in found if kind == b'"ts": ']
        duration_us = max(times) - min(times) + _GAP_US
        shift_of = {b'"ts": ': duration_us, b'"ProfilerStep#': 1}
        return cls(
            head=text[: opening.end()],
            step=_MOVES.sub(rb"\1%d", step.replace(b"%", b"%%")),
            tail=text[end:],
            numbers=[number for _, number in found],
            shifts=[shift_of.get(kind, _ID_SHIFT) for kind, _ in found],
        )

    def write(self, path: Path, rank: int, ranks: int, json_bytes: int) -> None:
        head = _DISTRIBUTED.sub(b'"rank": %d, "world_size": %d' % (rank, ranks), self.head)
        written = len(head)
        with igzip.open(path, "wb", compresslevel=3) as file:  # type: ignore[no-untyped-call]
            file.write(head)
            for step in count():
                moved = (n + step * s for n, s in zip(self.numbers, self.shifts, strict=True))
                text = (b"," if step else b"") + self.step % tuple(moved)
                file.write(text)
                written += len(text)
                if written >= json_bytes:
                    break
            file.write(self.tail)


def write_traces(folder: Path, ranks: int, json_bytes: int) -> None:
    """One file per rank, the recorded ranks in turn."""
    files = sorted(RECORDING.glob("*.json.gz"))
    with tempfile.TemporaryDirectory() as scratch:
        templates = [Template.read(path) for path in files or [made_up_trace(Path(scratch))]]
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(ranks):
        templates[rank % len(templates)].write(folder / f"rank{rank}.json.gz", rank, ranks, json_bytes)
    print(f"{ranks} traces made from {RECORDING.name if files else 'a made-up one'}")


@dataclass(frozen=True)
class Run:
    wall_s: float
    command_s: float
    """CPU time of the command itself: gathering and diagnosing, on one core."""
    readers_s: float
    peak_bytes: int
    answer: bytes

    def quiet_s(self, workers: int) -> float:
        """Wall clock if each reader had a core to itself."""
        return self.command_s + self.readers_s / workers


def diagnose(folder: Path, workers: int) -> Run:
    command = [sys.executable, "-c", _DIAGNOSE, str(folder), "--json", "--workers", str(workers)]
    start, peak = time.monotonic(), 0
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, cwd=REPO, stdout=out, stderr=errors)
        while process.poll() is None:
            peak = max(peak, _tree_bytes(process.pid))
            time.sleep(SAMPLE_S)
        wall_s = time.monotonic() - start
        errors.seek(0)
        said = errors.read().decode().split()
        if process.returncode:
            raise SystemExit(" ".join(said))
        out.seek(0)
        return Run(wall_s, float(said[-2]), float(said[-1]), peak, out.read())


def _tree_bytes(parent: int) -> int:
    """Memory of a process and its children, each shared page divided among those that share it."""
    total = 0
    for pid in (parent, *_children(parent)):
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:  # ended meanwhile
            continue
        total += sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
    return total


def _children(parent: int) -> list[int]:
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                stat = Path(entry.path, "stat").read_text()
            except OSError:
                continue
            if int(stat.rpartition(")")[2].split()[1]) == parent:
                found.append(int(entry.name))
    return found


def _print(run: Run, json_bytes: float, ranks: int, workers: int) -> None:
    report = json.loads(run.answer)
    cpu_s = run.command_s + run.readers_s
    print(
        f"{len(report['ranks'])} of {ranks} ranks read, {json_bytes / 1e6:.0f} MB of JSON, {workers} readers"
    )
    print(f"  wall clock here            {run.wall_s:7.1f} s  (load {os.getloadavg()[0]:.1f})")
    print(f"  CPU time                   {cpu_s:7.1f} s  ({json_bytes / 1e6 / cpu_s:.0f} MB per CPU second)")
    print(f"    of it by the command     {run.command_s:7.1f} s")
    print(f"  memory, all processes      {run.peak_bytes / GIB:7.2f} GiB")
    print(f"  wall clock, {workers} quiet cores  {run.quiet_s(workers):7.1f} s")
    print(f"  diagnosis: {report['diagnosis']['bottleneck']}")
    if len(report["ranks"]) != ranks:
        raise SystemExit(f"{len(report['ranks'])} ranks were read, not {ranks}: these are no figures")


def main() -> None:
    parser = argparse.ArgumentParser(description="traces of many ranks to a diagnosis")
    parser.add_argument("--ranks", type=positive_number, default=64)
    parser.add_argument("--megabytes", type=positive_number, default=100, help="of JSON per rank")
    parser.add_argument("--workers", type=positive_number, default=2)
    parser.add_argument("--rounds", type=positive_number, default=1)
    parser.add_argument("--record", action="store_true", help="into results.json")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="where the traces are, or shall be kept")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.folder or Path(scratch)
        if not list(folder.glob("rank*.json.gz")):
            write_traces(folder, args.ranks, args.megabytes * 1_000_000)
        runs = [diagnose(folder, args.workers) for _ in range(args.rounds)]
        best = min(runs, key=lambda run: run.command_s + run.readers_s)
        _print(best, args.ranks * args.megabytes * 1e6, args.ranks, args.workers)
        if (args.ranks, args.megabytes, args.workers) == BAR_SIZE:
            compare({"ranks_64_s": best.quiet_s(2), "ranks_64_gib": best.peak_bytes / GIB}, args.record)


if __name__ == "__main__":
    main()
