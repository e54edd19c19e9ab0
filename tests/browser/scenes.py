"""What is submitted in a browser: a workload that is done in a second, traces with evil names."""

import gzip
import json
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
