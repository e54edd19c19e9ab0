"""Broken traces must be refused or read, never crash, hang or grow.

The default run takes a few hundred cases; the bar of 10,000 is the slow test. Mutations are seeded, so a
failure names a case that can be run again.
"""

import gzip
import json
import random
from collections import Counter
from pathlib import Path

import pytest

from tests.unit.trace.bombs import BOMBS
from tests.unit.trace.builders import host_event, kernel
from tools.trace.classify import load_patterns
from tools.trace.files import profile_file
from tools.trace.folder import FolderProfile, profile_folder
from tools.trace.isolate import ReaderLimits
from tools.trace.record import UnreadableTraceError
from tools.trace.report import build_report
from tools.trace.stream import ReadLimits

_HOSTILE = (
    *(b"NaN", b"-Infinity", b"1e999999999", b"-1", b"9" * 400, b"null", b'"text"', b"true"),
    *(b"[" * 3000, b"{" * 500, b'{"a":' * 2000, b"\\", b'"', b"}", b"]", b",", b"\x00", b"\xff\xfe"),
    *(b"0.0000000000000001", b"-9223372036854775809", b"\\ud800"),
)
_SHAPES = {"Input Dims": [[64, 32], [32, 16]], "Input type": ["float", "float"], "Concrete Inputs": ["", ""]}
_GROUP = {
    "Collective name": "allreduce",
    "In msg nelems": 1024,
    "Out msg nelems": 1024,
    "Group size": 2,
    "dtype": "Float",
    "Process Group Name": "0",
    "Process Group Ranks": "[0, 1]",
}
_MEMORY = {"Device Type": 1, "Device Id": 0, "Total Allocated": 10, "Total Reserved": 20, "Bytes": 1}


def _base_trace() -> bytes:
    """A little of everything that the readers look at."""
    events = []
    for step in range(3):
        zero = step * 1000
        copy = {"stream": 7, "bytes": 4096}
        events += [
            host_event("user_annotation", f"ProfilerStep#{step}", zero, 900),
            host_event("cpu_op", "aten::mm", zero + 10, 50, args=_SHAPES),
            host_event("cuda_runtime", "cudaLaunchKernel", zero + 15, 5, args={"correlation": zero + 1}),
            kernel("gemm", zero + 30.125, 100.5, correlation=zero + 1),
            kernel("ncclDevKernel_AllReduce", zero + 200, 300, stream=9, args=_GROUP),
            host_event("gpu_memcpy", "Memcpy HtoD", zero + 600, 20, args=copy),
            host_event("cpu_instant_event", "[memory]", zero, 0, args=_MEMORY),
            host_event("user_annotation", "enumerate(DataLoader)#next", zero + 700, 20),
        ]
    metadata = {"schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 2, "backend": "nccl"}}
    return json.dumps({**metadata, "traceEvents": events, "traceName": "x"}, indent=1).encode()


def _mutate(text: bytes, chance: random.Random) -> bytes:
    """One to four changes of any sort."""
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(text) + 1)
        until = min(len(text), at + chance.choice((1, 1, 3, 20, 400)))
        kind = chance.randrange(7)
        if kind == 0:
            text = text[:at]
        elif kind == 1:
            text = text[:at] + text[until:]
        elif kind == 2:
            text = text[:at] + chance.choice(_HOSTILE) + text[until:]
        elif kind == 3:
            text = text[:at] + chance.choice(_HOSTILE) + text[at:]
        elif kind == 4:
            text = text[:at] + text[at:until] * chance.randint(2, 5) + text[until:]
        elif kind == 5:
            text = text[:at] + chance.randbytes(until - at) + text[until:]
        else:
            text = _replace_a_value(text, chance)
    return text


def _replace_a_value(text: bytes, chance: random.Random) -> bytes:
    """Keeps the JSON around a number and changes only the number."""
    colon = text.find(b": ", chance.randrange(len(text) + 1))
    end = min((i for i in (text.find(c, colon) for c in (b",", b"}", b"\n")) if i >= 0), default=-1)
    if colon < 0 or end < 0:
        return text
    return text[: colon + 2] + chance.choice(_HOSTILE) + text[end:]


def _run_cases(folder: Path, seeds: range) -> Counter[str]:
    base, counts = _base_trace(), Counter[str]()
    plain, packed = folder / "rank0.json", folder / "rank0.json.gz"
    for seed in seeds:
        chance = random.Random(seed)
        text = _mutate(base, chance) if seed % 4 else base
        path = packed if seed % 4 in (0, 1) else plain
        content = gzip.compress(text, 1) if path is packed else text
        path.write_bytes(_mutate(content, chance) if seed % 4 == 0 else content)
        try:
            profile = profile_file(path, load_patterns())
        except UnreadableTraceError as error:
            counts["refused" if str(error) else "refused without a reason"] += 1
        else:
            terms = profile.breakdown
            busy_ns = terms.compute_ns + terms.exposed_communication_ns + terms.memory_ns
            assert busy_ns + terms.idle_ns == terms.total_ns, f"seed {seed}"
            profile.rank = 0
            json.dumps(build_report(FolderProfile("folder", [profile])).model_dump(), allow_nan=False)
            counts["read"] += 1
    return counts


@pytest.mark.parametrize(
    "seeds", [range(400), pytest.param(range(400, 10_400), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_mutated_traces_are_read_or_refused_with_a_reason(tmp_path: Path, seeds: range) -> None:
    counts = _run_cases(tmp_path, seeds)
    assert counts.keys() == {"read", "refused"}
    assert counts.total() == len(seeds)
    assert counts["read"] > 20
    assert counts["refused"] > 100


def _write_all_formats(folder: Path, count: int) -> None:
    """Plain and packed JSON and SQLite exports, each damaged in its own way."""
    text, export = _base_trace(), BOMBS["huge integers"](folder)
    contents = {"json": text, "json.gz": gzip.compress(text, 1), "sqlite": export.read_bytes()}
    export.unlink()
    for seed in range(count):
        suffix = ("json", "json.gz", "sqlite")[seed % 3]
        (folder / f"rank{seed}.{suffix}").write_bytes(_mutate(contents[suffix], random.Random(seed)))


@pytest.mark.parametrize("count", [60, pytest.param(10_000, marks=pytest.mark.slow)])
def test_damaged_files_of_all_formats_end_in_the_sandbox_one_by_one(tmp_path: Path, count: int) -> None:
    _write_all_formats(tmp_path, count)
    result = profile_folder(tmp_path, limits=ReaderLimits(profile_bytes=1 << 20))
    died = [file for file in result.unreadable if "process that read it" in file.reason]
    print(
        f"{len(result.ranks)} read, {len(result.unreadable)} refused, of these {len(died)} by a dead reader"
    )
    assert len(result.ranks) + len(result.unreadable) == count
    for rank in result.ranks[:500]:
        build_report(FolderProfile("folder", [rank]))


@pytest.mark.parametrize(("name", "stride"), [("rank0.json", 37), ("rank0.json.gz", 11)])
def test_every_truncation_is_refused(tmp_path: Path, name: str, stride: int) -> None:
    content, path = _base_trace(), tmp_path / name
    content = gzip.compress(content) if name.endswith(".gz") else content
    for length in range(0, len(content) - 1, stride):
        path.write_bytes(content[:length])
        with pytest.raises(UnreadableTraceError):
            profile_file(path, load_patterns())


@pytest.mark.parametrize("filling", [b" ", b"[", b'{"ph":"X"},', b"\x00"])
def test_a_gzip_bomb_is_refused_at_the_limit(tmp_path: Path, filling: bytes) -> None:
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + filling * (40_000_000 // len(filling))))
    limits = ReadLimits(max_expansion_ratio=50.0, expansion_free_bytes=1 << 20)
    with pytest.raises(UnreadableTraceError):
        profile_file(path, load_patterns(), limits=limits)
