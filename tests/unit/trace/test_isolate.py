"""Files from outside cannot harm the process that has them read."""

import gzip
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.unit.trace.bombs import BOMBS
from tests.unit.trace.builders import kernel, write
from tools.trace.classify import load_patterns
from tools.trace.folder import FolderProfile, profile_folder, read_timeline, read_trace
from tools.trace.isolate import ReaderLimits, Timeline, read_isolated
from tools.trace.rank_profile import RankProfile
from tools.trace.record import UnreadableTraceError
from tools.trace.timeline import pack

NO_TABLE = "has no table of Nsight Systems events"
QUICK = {
    "endless view": NO_TABLE,
    "view of endless rows": NO_TABLE,
    "view of endless texts": "not authorized to use function: hex",
    "endless runtime view": None,  # read without that view: the kernels are a table
    "computed column": "string or blob too big",
    "virtual table": NO_TABLE,
    "deep objects": "maximum recursion depth exceeded",
}
"""Why each is refused."""
FEW_SECONDS = ReaderLimits(cpu_s=2, cpu_s_per_megabyte=0.02)


class StopError(Exception):
    pass


def _beside_a_good_file(folder: Path, name: str, limits: ReaderLimits) -> FolderProfile:
    BOMBS[name](folder)
    write(folder, [kernel("gemm", 0, 5)], "rank1.json")
    return profile_folder(folder, limits=limits)


def _names(result: FolderProfile) -> list[str]:
    return sorted([*(rank.file for rank in result.ranks), *(file.file for file in result.unreadable)])


@pytest.mark.parametrize("name", QUICK)
def test_a_bomb_is_refused_and_the_file_beside_it_is_read(tmp_path: Path, name: str) -> None:
    result, reason = _beside_a_good_file(tmp_path, name, ReaderLimits()), QUICK[name]
    assert len(_names(result)) == 2
    assert "rank1.json" in [rank.file for rank in result.ranks]
    if reason is None:
        assert result.unreadable == []
    else:
        assert reason in result.unreadable[0].reason


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(BOMBS) - {*QUICK}))
def test_every_bomb_ends_within_the_limits(tmp_path: Path, name: str) -> None:
    result = _beside_a_good_file(tmp_path, name, FEW_SECONDS)
    assert len(_names(result)) == 2
    assert "rank1.json" in [rank.file for rank in result.ranks]


def test_a_file_that_takes_too_much_memory_is_refused_with_the_limit(tmp_path: Path) -> None:
    write(tmp_path, [kernel("k" * 60_000 + str(n), n, 1) for n in range(2000)], "rank0.json.gz")
    result = profile_folder(tmp_path, limits=ReaderLimits(memory_bytes=160 << 20))
    assert "takes more than 0.156 GiB of memory" in result.unreadable[0].reason


def test_a_file_that_takes_too_long_is_refused_with_the_limit(tmp_path: Path) -> None:
    BOMBS["crossed tables"](tmp_path)
    limits = ReaderLimits(cpu_s=1, cpu_s_per_megabyte=0)
    assert profile_folder(tmp_path, limits=limits).unreadable[0].reason == "takes more than 1 s to read"


def test_whoever_must_stop_kills_the_reader(tmp_path: Path) -> None:
    """Cancel, budget, shutdown and a lost lease all arrive by `check`."""
    BOMBS["crossed tables"](tmp_path)
    calls, before = 0, set(_children(os.getpid()))

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls == 4:
            assert set(_children(os.getpid())) - before
            raise StopError

    with pytest.raises(StopError):
        profile_folder(tmp_path, check=check)
    assert set(_children(os.getpid())) <= before


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel for its processes")
def test_a_reader_dies_with_its_parent_and_holds_none_of_its_secrets(tmp_path: Path) -> None:
    BOMBS["crossed tables"](tmp_path)
    code = (
        f"from pathlib import Path; from tools.trace.folder import *; profile_folder(Path({str(tmp_path)!r}))"
    )
    secret = {**os.environ, "ASAP_LLM_API_KEY": "sk-hidden"}
    parent = subprocess.Popen([sys.executable, "-c", code], env=secret)
    while not (readers := _children(parent.pid)):
        time.sleep(0.02)
    (reader,) = readers
    time.sleep(0.5)
    assert b"sk-hidden" not in Path(f"/proc/{reader}/environ").read_bytes()
    assert _is_running(reader)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    while _is_running(reader):
        time.sleep(0.02)


def test_a_profile_larger_than_allowed_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, [kernel("gemm", 0, 5)])
    limits = ReaderLimits(profile_bytes=100)
    ((_, outcome),) = read_isolated([path], load_patterns(), None, limits, 1)
    assert outcome == "its profile takes more than 0 MiB"


def test_a_timeline_comes_before_the_profile_of_the_same_reading(tmp_path: Path) -> None:
    path = write(tmp_path, [kernel("gemm", 0, 5)])
    outcomes = read_isolated([path], load_patterns(), None, ReaderLimits(), 1, timelines=[path])
    first, second = (outcome for _, outcome in outcomes)
    assert isinstance(first, Timeline)
    assert gzip.decompress(first.packed) == pack(read_trace(path))
    assert isinstance(second, RankProfile)
    assert read_timeline(path) == first.packed
    (tmp_path / "rank1.json").write_text("no trace")
    with pytest.raises(UnreadableTraceError, match="malformed"):
        read_timeline(tmp_path / "rank1.json")


def _children(pid: int) -> list[int]:
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in files for child in file.read_text().split()]


def _is_running(pid: int) -> bool:
    try:
        return re.search(r"State:\s+[ZX]", Path(f"/proc/{pid}/status").read_text()) is None
    except (FileNotFoundError, ProcessLookupError):
        return False
