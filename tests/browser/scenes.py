"""What is submitted in a browser: a quick workload, traces with evil names, a large trace."""

import gzip
import json
import random
from pathlib import Path
from typing import Any

from tests.unit.service.served import SCENARIO

TRACES = Path(__file__).resolve().parents[2] / "examples" / "traces" / "ddp-gloo-straggler"
EVIL = "<img src=x onerror=\"window.hacked='{}'\">"
EVIL_KERNEL = "<img src=x onerror=hacked=1>"


def evil(place: str) -> str:
    return EVIL.format(place)


def small(**parts: Any) -> dict[str, Any]:  # noqa: ANN401 - fields of a request
    return {**SCENARIO, **parts}


def filled() -> dict[str, str]:
    """The fields of the form, by name."""
    return {
        "config": json.dumps(SCENARIO["model"]),
        "model.name": evil("model"),
        "devices": "8 x H100 SXM",
        "training.seq_len": "2048",
        "training.global_batch_size": "64",
        "plan.tp": "8",
        "notes": evil("notes"),
    }


def evil_traces(folder: Path) -> list[Path]:
    """The example's traces, their kernels renamed."""
    made = []
    for file in sorted(TRACES.glob("*.json.gz")):
        text = gzip.decompress(file.read_bytes()).decode().replace("aten::mm", EVIL_KERNEL)
        (folder / file.name).write_bytes(gzip.compress(text.encode(), 1))
        made.append(folder / file.name)
    return made


def write_ranks(folder: Path, count: int, late: int, steps: int = 12) -> None:
    """A rank computes 300 microseconds, the late one 900, then all meet in an all-reduce until 1,000."""
    for rank in range(count):
        computes_us, events = 900 if rank == late else 300, []
        for step in range(steps):
            began_us = 1.7e9 + step * 1000
            for name, stream, at_us, long_us in (
                ("gemm", 7, began_us, computes_us),
                ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 24, began_us + computes_us, 1000 - computes_us),
            ):
                where = {"pid": 0, "tid": stream, "args": {"stream": stream, "device": 0}}
                events.append(
                    {"ph": "X", "cat": "kernel", "name": name, "ts": at_us, "dur": long_us, **where}
                )
        whole = {"distributedInfo": {"rank": rank, "world_size": count}, "traceEvents": events}
        (folder / f"rank{rank:04d}.json.gz").write_bytes(gzip.compress(json.dumps(whole).encode(), 1))


def write_million(path: Path) -> None:
    """Half a million kernels and the calls that launch them."""
    pick, at_us = random.Random(1), 1.7e15
    names = [*(f"gemm_{number}" for number in range(40)), "ncclDevKernel_AllReduce", "flash_fwd"]
    launch, kernel = (
        {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": 7}
        for cat, name, pid in (("cuda_runtime", "cudaLaunchKernel", 1), ("kernel", "", 0))
    )
    with gzip.open(path, "wt", compresslevel=1) as out:
        out.write('{"distributedInfo": {"rank": 0, "world_size": 1}, "traceEvents": [')
        for number in range(500_000):
            wide, link = round(1 + pick.random() * 60, 3), {"correlation": number}
            first = {**launch, "ts": round(at_us - 9, 3), "dur": 2, "args": link}
            work = {"name": pick.choice(names), "ts": round(at_us, 3), "dur": wide}
            second = {**kernel, **work, "args": {**link, "stream": 7, "device": 0}}
            out.write(("," if number else "") + json.dumps(first) + "," + json.dumps(second))
            at_us += wide + pick.random()
        out.write("]}")
