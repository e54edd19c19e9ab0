"""What readers of untrusted files may take: memory together, and CPU time of a file with very many ids."""

import gzip
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Thread

import pytest

from tests.unit.trace.builders import kernel, write
from tools.trace.folder import profile_folder
from tools.trace.isolate import MOST_MEMORY_BYTES

TENANTS = 20
_RSS = "VmRSS:"


def _children() -> set[str]:
    return {
        child for file in Path("/proc/self/task").glob("*/children") for child in file.read_text().split()
    }


def _resident_bytes(others: set[str]) -> int:
    """Of the readers: children of this process but those of other tests' fixtures."""
    total, own = 0, Path("/proc/self/cmdline").read_bytes()
    for child in _children() - others:
        try:
            if Path(f"/proc/{child}/cmdline").read_bytes() == own:  # forked, and shares our pages still
                continue
            status = Path(f"/proc/{child}/status").read_text()
        except OSError:
            continue
        total += sum(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith(_RSS))
    return total


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks Linux for its processes")
def test_bombs_of_twenty_tenants_stay_within_one_budget(tmp_path: Path) -> None:
    """Six at once, 1.5 GiB each, were possible. A file beside each bomb is read all the same."""
    event = b'{"ph":"X","cat":"kernel","name":"%b","pid":0,"tid":7,"ts":%d,"dur":1},'
    bomb = b'{"traceEvents":[' + b"".join(event % (b"k" * 50_000 + b"%d" % n, n) for n in range(8000))
    packed = gzip.compress(bomb[:-1] + b"]}", 1)
    peaks, done, others = [0], Event(), _children()

    def watch() -> None:
        while not done.wait(0.05):
            peaks.append(_resident_bytes(others))

    def read(number: int) -> tuple[int, list[str]]:
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "rank0.json.gz").write_bytes(packed)
        write(folder, [kernel("gemm", 0, 5)], "rank1.json")
        result = profile_folder(folder, workers=2)
        return len(result.ranks), [file.reason for file in result.unreadable]

    watcher = Thread(target=watch)
    watcher.start()
    with ThreadPoolExecutor(TENANTS) as tenants:
        results = list(tenants.map(read, range(TENANTS)))
    done.set()
    watcher.join()
    assert max(peaks) > 0
    assert max(peaks) <= MOST_MEMORY_BYTES
    assert all(ranks == 1 and "GiB of memory" in reasons[0] for ranks, reasons in results)


@pytest.mark.parametrize("category", ["kernel", "cuda_runtime", "user_annotation"])
def test_a_trace_with_300_000_process_ids_is_read_in_its_time(tmp_path: Path, category: str) -> None:
    """The limit of CPU time refuses what takes longer with their square."""
    events: list[dict[str, object]] = [kernel("ncclKernel_AllReduce", 0, 5)]
    for number in range(300_000):
        own = {"cat": category, "name": f"ncclDevKernel{number % 9}", "pid": number, "tid": number}
        events.append({"ph": "X", "ts": number, "dur": 1, "args": {"stream": number}, **own})
    write(tmp_path, events, "rank0.json.gz")
    result = profile_folder(tmp_path, keep_timeline=lambda _name, _packed: None)
    assert not result.unreadable
