"""How many megabytes of trace JSON are read per CPU second, beside tools that load the whole file.

Every contender goes from gzip JSON to the breakdown of one rank, in a process of its own, one file after the
other; the rounds alternate between contenders and the best round of each counts. Imports are not timed.

    python -m benchmarks.trace [--traces DIR] [--rounds N] [--peer-python PYTHON] [--peer-path DIR] [--record]

`json.load` (every event a dictionary, and no more) and `full load` (and a call tree, and a frame of all
events) are plain Python and always there. TraceLens (github.com/AMD-AGI/TraceLens; the PyPI package of that
name is something else) and HolisticTraceAnalysis (PyPI: traceinsight) take part if the interpreter of
--peer-python can import them; --peer-path goes before its search path. The bar speaks of TraceLens-style
full loading: TraceLens is held against it where it runs, else `full load` stands in, and the text says so.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.trace_contenders import CONTENDERS, PEERS
from service.cli.parser import positive_number

REPO = Path(__file__).resolve().parents[1]
SHARED = REPO / ".." / "shared" / "traces"
CHOSEN = (
    "v100_df_index_resolver",
    "v100_ns_resolution",
    "a100_nccl_data",
    "b200_eager",
    "mi300_ddp_resnet18",
)
"""About 100 MB of JSON, old and new writers, micro- and nanoseconds; TraceLens does not read a100_control."""
BAR_TIMES_FULL_LOAD = 5.0


def run_contender(name: str, files: list[Path]) -> dict[str, Any]:
    """CPU seconds and results of one contender, in this process."""
    contender = CONTENDERS[name]
    # Some contenders refuse so small a trace; it only serves to import everything.
    with (
        tempfile.TemporaryDirectory() as folder,
        suppress(KeyError, ValueError, IndexError, ZeroDivisionError, AssertionError),
    ):
        contender(_small_trace(Path(folder)))
    start = time.process_time()
    results = [contender(path) for path in files]
    return {"cpu_s": time.process_time() - start, "results": results}


def _small_trace(folder: Path) -> Path:
    import gzip

    kernel = {
        "ph": "X",
        "cat": "kernel",
        "name": "gemm",
        "pid": 0,
        "tid": 7,
        "ts": 1,
        "dur": 2,
        "args": {"stream": 7},
    }
    path = folder / "rank0.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"schemaVersion": 1, "traceEvents": [kernel]}).encode()))
    return path


def _measure(name: str, files: list[Path], args: argparse.Namespace) -> dict[str, Any]:
    """One round in a fresh process; `failed` has the reason when the contender is not there."""
    python = args.peer_python if name in PEERS else sys.executable
    paths = [str(REPO), *([args.peer_path] if args.peer_path and name in PEERS else [])]
    code = f"import sys; sys.path[:0] = {paths!r}; from benchmarks.trace import main; main()"
    command = [python, "-c", code, "--contender", name, *map(str, files)]
    result = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False)
    if result.returncode:
        return {"failed": (result.stderr.strip().splitlines() or ["no message"])[-1]}
    answer: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return answer


def _compare(files: list[Path], args: argparse.Namespace) -> None:
    from tools.trace.stream import ReadLimits, open_json

    megabytes = 0.0
    for path in files:
        with open_json(path, ReadLimits()) as source:
            while source.fill(memoryview(bytearray(1 << 20))):
                pass
            megabytes += source.json_bytes / 1e6
    print(f"{len(files)} traces, {megabytes:.1f} MB of JSON, best of {args.rounds} rounds")
    best: dict[str, dict[str, Any]] = {}
    for _ in range(args.rounds):
        for name in CONTENDERS:
            answer = _measure(name, files, args)
            if name not in best or answer.get("cpu_s", 1e9) < best[name].get("cpu_s", 1e9):
                best[name] = answer
    _print(best, megabytes)
    from benchmarks.results import compare  # not in a peer's process, which lacks what it needs

    rates = {"trace_mb_per_s": "asap", "trace_all_mb_per_s": "asap, all analyses"}
    compare({row: megabytes / best[name]["cpu_s"] for row, name in rates.items()}, args.record)


def _print(best: dict[str, dict[str, Any]], megabytes: float) -> None:
    ours = best["asap"]["cpu_s"]
    print(f"{'':24}{'CPU s':>8}{'MB/CPU s':>10}{'asap is':>10}")
    for name in CONTENDERS:
        if "failed" in best[name]:
            print(f"{name:24}did not run: {best[name]['failed'][:90]}")
            continue
        cpu_s = best[name]["cpu_s"]
        times = "" if name == "asap" else f"{cpu_s / ours:9.1f}×"
        print(f"{name:24}{cpu_s:8.2f}{megabytes / cpu_s:10.1f}{times:>10}")
    has_peer = "cpu_s" in best["TraceLens"]
    peer = "TraceLens" if has_peer else "full load"
    stands_in = "" if has_peer else " (in place of TraceLens, which did not run)"
    ratio = best[peer]["cpu_s"] / ours
    verdict = "met" if ratio >= BAR_TIMES_FULL_LOAD else "missed"
    print(f"bar: {BAR_TIMES_FULL_LOAD:.0f} times as fast as {peer}{stands_in}: {verdict}, {ratio:.1f}")


def _find_files(folder: str | None, scratch: Path) -> list[Path]:
    if folder:
        return sorted(Path(folder).resolve().glob("*.json.gz"))
    shared = [(SHARED / "single" / f"{name}.json.gz").resolve() for name in CHOSEN]
    return [path for path in shared if path.is_file()] or [made_up_trace(scratch)]


def made_up_trace(folder: Path) -> Path:
    """Where no real traces are at hand: 200,000 events of the usual sorts and lengths."""
    import gzip

    trace = {
        "schemaVersion": 1,
        "traceEvents": [event for i in range(50_000) for event in _made_up_launch(i)],
    }
    path = folder / "rank0.json.gz"
    path.write_bytes(gzip.compress(json.dumps(trace, indent=1).encode(), 6))
    return path


def _made_up_launch(number: int) -> list[dict[str, Any]]:
    """An op, its launch, its kernel and the arrow between them."""
    ids = {"External id": number, "correlation": number}
    kernel = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>" * 2
    dims = {"Input Dims": [[4, 2048, 4096]], "Input type": ["float"], "Ev Idx": number}
    shape = {"grid": [64, 1, 1], "block": [128, 1, 1], "registers per thread": 32, "stream": 7}
    common = {"ph": "X", "pid": 1, "ts": 1712195495500000 + number * 10}
    return [
        {**common, "cat": "cpu_op", "name": "aten::add_", "tid": 1, "dur": 8, "args": {**ids, **dims}},
        {**common, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "tid": 1, "dur": 5, "args": ids},
        {**common, "cat": "kernel", "name": kernel, "tid": 7, "dur": 6.5, "args": {**ids, **shape}},
        {**common, "ph": "s", "cat": "ac2g", "name": "ac2g", "id": number, "tid": 1},
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="trace reading: megabytes of JSON per CPU second")
    parser.add_argument("--traces", metavar="DIR", help="folder of *.json.gz (default: the shared traces)")
    parser.add_argument("--rounds", type=positive_number, default=3)
    parser.add_argument("--peer-python", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--peer-path", default="", metavar="DIR")
    parser.add_argument("--record", action="store_true", help="into results.json")
    parser.add_argument("--contender", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("files", nargs="*", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.contender:
        print(json.dumps(run_contender(args.contender, args.files)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        files = _find_files(args.traces, Path(scratch))
        if not files:
            parser.error(f"--traces: {args.traces} has no *.json.gz")
        _compare(files, args)


if __name__ == "__main__":
    main()
