"""Memory stays bounded however long the trace is."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from isal import igzip

REPO = Path(__file__).resolve().parents[2]
MIB = 1 << 20
# Not ru_maxrss: a child starts with its parent's, and the parent is the whole test run.
_MEASURE = """
import re, sys
from pathlib import Path
from tools.trace.files import profile_file
from tools.trace.classify import load_patterns
profile = profile_file(Path(sys.argv[1]), load_patterns())
peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())
print(profile.json_bytes, profile.num_work_events, int(peak.group(1)) * 1024)
"""


def _events(first: int, count: int) -> str:
    """Each kernel with its launch, the op around it and the flow between them."""
    rows = []
    for number in range(first, first + count):
        time = {"ts": 1712195495500000 + number * 20, "dur": 6.125, "pid": 1}
        ids = {"External id": number, "correlation": number}
        dims = {"Input Dims": [[64, 4096], [4096]], "Input type": ["float", "float"]}
        rows += [
            {"ph": "X", "cat": "cpu_op", "name": "aten::add_", "tid": 1, **time, "args": {**ids, **dims}},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "tid": 1, **time, "args": ids},
            {"ph": "X", "cat": "kernel", "name": "k" * 120, "tid": 7, **time, "args": {**ids, "stream": 7}},
            {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": number, "tid": 1, **time},
        ]
    return json.dumps(rows)[1:-1]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux to measure memory")
def test_a_long_trace_takes_a_fraction_of_its_length_in_memory(tmp_path: Path) -> None:
    path, kernels = tmp_path / "rank0.json.gz", 0
    with igzip.open(path, "wb") as file:  # type: ignore[no-untyped-call]
        file.write(b'{"schemaVersion": 1, "traceEvents": [')
        for part in range(24):
            file.write((", " if part else "").encode() + _events(part * 10_000, 10_000).encode())
            kernels += 10_000
        file.write(b"]}")
    command = [sys.executable, "-c", _MEASURE, str(path)]
    result = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=True)
    json_bytes, work_events, resident_bytes = map(int, result.stdout.split())
    assert work_events == kernels
    assert json_bytes > 160 * MIB
    assert resident_bytes < json_bytes
    assert resident_bytes < 256 * MIB
