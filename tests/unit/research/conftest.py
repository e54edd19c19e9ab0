"""Measurements made up by the model itself, so that the right answer of a fit is known."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tools.scenario import Scenario, parse_scenario

MODEL = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}


def raw_scenario(tp: int, micro: int, framework: str, device: str) -> dict[str, Any]:
    dp = 32 // tp
    plan = {"tp": tp, "pp": 1, "cp": 1, "ep": 1, "dp": dp, "dp_shard": dp, "micro_batch_size": micro}
    return {
        "model": MODEL,
        "cluster": {"device": device, "num_devices": 32},
        "training": {"seq_len": 4096, "global_batch_size": 512, "precision": "bf16", "framework": framework},
        "plan": plan | {"zero_stage": 3, "recompute": "none"},
    }


def rows() -> list[dict[str, Any]]:
    return [
        raw_scenario(tp, micro, framework, device)
        for framework in ("megatron-core", "torchtitan")
        for device in ("h100-sxm-80gb", "a100-sxm-80gb")
        for tp in (1, 2, 4, 8)
        for micro in (1, 2, 4)
    ]


@pytest.fixture(scope="session")
def scenarios() -> list[Scenario]:
    return [parse_scenario(row) for row in rows()]


@pytest.fixture
def write_measurements(tmp_path: Path) -> Callable[[list[float]], Path]:
    """A JSONL file of the scenarios with these step times, two groups a source."""

    def write(times_s: list[float]) -> Path:
        path = tmp_path / "measured.jsonl"
        lines = [
            {
                "id": f"run-{n}",
                "source": {"key": f"source-{n % 4}"},
                "group": f"group-{n % 8}",
                "scenario": row,
                "measured": {"step_time_s": seconds, "peak_memory_gib": 40.0 if n % 2 else None},
            }
            for n, (row, seconds) in enumerate(zip(rows(), times_s, strict=True))
        ]
        path.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
        return path

    return write
