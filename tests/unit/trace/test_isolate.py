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
from tools.trace.files import read_trace
from tools.trace.folder import profile_folder, read_timeline
from tools.trace.isolate import ReaderLimits, read_isolated
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
    "deep objects": "nested too deeply",
}
"""Why each is refused."""
FEW_SECONDS = ReaderLimits(cpu_s=2, cpu_s_per_megabyte=0.02)


class StopError(Exception):
    pass


def _reason_beside_a_good_file(folder: Path, name: str, limits: ReaderLimits) -> str | None:
    """Why the bomb was refused, if it was; the file beside it is read."""
    BOMBS[name](folder)
    write(folder, [kernel("gemm", 0, 5)], "rank1.json")
    result = profile_folder(folder, limits=limits)
    assert len(result.ranks) + len(result.unreadable) == 2
    assert "rank1.json" in [rank.file for rank in result.ranks]
    return result.unreadable[0].reason if result.unreadable else None


@pytest.mark.parametrize("name", QUICK)
def test_a_bomb_is_refused_and_the_file_beside_it_is_read(tmp_path: Path, name: str) -> None:
    reason = _reason_beside_a_good_file(tmp_path, name, ReaderLimits())
    assert (reason is None) == (QUICK[name] is None)
    assert (QUICK[name] or "") in (reason or "")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(BOMBS) - {*QUICK}))
def test_every_bomb_ends_within_the_limits(tmp_path: Path, name: str) -> None:
    _reason_beside_a_good_file(tmp_path, name, FEW_SECONDS)


def test_a_file_that_takes_too_much_is_refused_with_the_limit(tmp_path: Path) -> None:
    large, slow = tmp_path / "large", tmp_path / "slow"
    large.mkdir()
    slow.mkdir()
    write(large, [kernel("k" * 60_000 + str(n), n, 1) for n in range(2000)], "rank0.json.gz")
    result = profile_folder(large, limits=ReaderLimits(memory_bytes=160 << 20))
    assert "takes more than 0.156 GiB of memory" in result.unreadable[0].reason
    BOMBS["crossed tables"](slow)
    result = profile_folder(slow, limits=ReaderLimits(base_bytes=1 << 30, cpu_s=1, cpu_s_per_megabyte=0))
    assert result.unreadable[0].reason == "takes more than 1 s to read"
    path = write(tmp_path, [kernel("gemm", 0, 5)])
    ((_, outcome),) = read_isolated([path], load_patterns(), None, ReaderLimits(profile_bytes=100), 1)
    assert outcome == "its profile takes more than 0 MiB"


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


def test_a_timeline_comes_before_the_profile_of_the_same_reading(tmp_path: Path) -> None:
    path = write(tmp_path, [kernel("gemm", 0, 5)])
    outcomes = read_isolated([path], load_patterns(), None, ReaderLimits(), 1, timelines=[path])
    first, second = (outcome for _, outcome in outcomes)
    assert isinstance(first, bytes)
    assert gzip.decompress(first) == pack(read_trace(path))
    assert isinstance(second, RankProfile)
    assert read_timeline(path) == first
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
