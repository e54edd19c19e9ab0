"""Plans that the real packages judge: dense and MoE, with every axis that a format has."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.frameworks.scenarios import MODEL
from tests.unit.frameworks.scenarios import PLAN as BASE_PLAN
from tools.frameworks import Export, export_plan
from tools.scenario import Scenario, parse_scenario

EXPERTS = {"num_experts": 64, "num_experts_per_tok": 4, "moe_intermediate_size": 2048}
PLAN = BASE_PLAN | {"tp": 1, "dp": 64, "dp_shard": 64, "sequence_parallel": None, "recompute": "full"}
Build = Callable[..., Scenario]


@pytest.fixture
def build() -> Build:
    def call(
        framework: str,
        *,
        moe: bool = False,
        layers: int = 80,
        training: dict[str, Any] | None = None,
        **plan: object,
    ) -> Scenario:
        stated = {"seq_len": 8192, "global_batch_size": 256, "precision": "bf16", "framework": framework}
        return parse_scenario(
            {
                "model": MODEL | {"num_hidden_layers": layers} | (EXPERTS if moe else {}),
                "cluster": {"device": "b200", "num_devices": 64, "devices_per_node": 8},
                "training": stated | (training or {}),
                "plan": PLAN | plan,
            }
        )

    return call


@pytest.fixture
def exported(build: Build) -> Callable[..., Export]:
    def call(name: str, framework: str, **words: Any) -> Export:  # noqa: ANN401 - passed on as they are
        return export_plan(build(framework, **words), name)

    return call
