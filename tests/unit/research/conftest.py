"""Measurements made up by the model itself, so that the right answer of a fit is known."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.physics.scenes import raw_scenario
from tools.scenario import Scenario, parse_scenario


def rows() -> list[dict[str, Any]]:
    usual = {"model": "llama-3.1-8b", "devices": 32, "batch": 512, "zero_stage": 3}
    return [
        raw_scenario(framework=framework, device=device, tp=tp, micro_batch_size=micro, **usual)
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
                "source": f"source-{n % 4}",
                "group": f"group-{n % 8}",
                "scenario": row,
                "measured": {"step_time_s": seconds, "peak_memory_gib": 40.0 if n % 2 else None},
            }
            for n, (row, seconds) in enumerate(zip(rows(), times_s, strict=True))
        ]
        path.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
        return path

    return write
