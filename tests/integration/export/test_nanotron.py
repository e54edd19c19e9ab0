"""nanotron reads the exported sections with its own strict configuration classes.

The release on PyPI (0.4) does not import (its modules import each other in a circle): a checkout of
huggingface/nanotron judges instead, its folder src on PYTHONPATH. FlashAttention, which its models name when
they are imported and no configuration uses, needs a GPU to install: an empty module stands in its place.
"""

import sys
from collections.abc import Callable
from dataclasses import fields
from typing import Any
from unittest.mock import MagicMock

import pytest
import yaml

from tools.frameworks import Export, export_plan
from tools.scenario import Scenario

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore")]

FLASH_ATTENTION = ("flash_attn", "flash_attn.flash_attn_interface")
PLANS: list[dict[str, Any]] = [
    {"zero_stage": 1},
    {"zero_stage": 0, "dp_shard": 1, "tp": 8, "dp": 8, "sequence_parallel": True, "recompute": "none"},
    {"zero_stage": 1, "tp": 4, "pp": 4, "dp": 4, "dp_shard": 4, "schedule": "1f1b"},
    {"zero_stage": 1, "pp": 8, "dp": 8, "dp_shard": 8, "schedule": "gpipe"},
    {"zero_stage": 1, "cp": 4, "dp": 16, "dp_shard": 16},
    {"moe": True, "zero_stage": 1, "ep": 8},
]


def accept_nanotron(scenario: Scenario, export: Export) -> None:
    missing = [name for name in FLASH_ATTENTION if name not in sys.modules]
    sys.modules |= {name: MagicMock(__spec__=None, __version__="2.8") for name in missing}
    try:
        from nanotron.config.config import OptimizerArgs, TokensArgs  # type: ignore[import-not-found]
        from nanotron.config.parallelism_config import ParallelismArgs  # type: ignore[import-not-found]
    except ImportError as error:
        pytest.skip(f"nanotron is not on PYTHONPATH as a checkout: {error}")
    finally:  # other frameworks ask whether it is there
        for name in missing:
            del sys.modules[name]
    settings, plan = yaml.safe_load(export.text), scenario.plan
    assert plan is not None
    parallelism = ParallelismArgs(**settings["parallelism"])
    assert (parallelism.tp, parallelism.pp, parallelism.dp) == (plan.tp, plan.pp, plan.dp)
    assert (parallelism.context_parallel_size, parallelism.expert_parallel_size) == (plan.cp, plan.ep)
    tokens = TokensArgs(train_steps=1, **settings["tokens"])
    batch = tokens.micro_batch_size * tokens.batch_accumulation_per_replica * plan.dp
    assert batch == scenario.training.global_batch_size
    assert set(settings["optimizer"]) <= {field.name for field in fields(OptimizerArgs)}


@pytest.mark.parametrize("words", PLANS, ids=str)
def test_nanotron_takes_the_exported_sections(words: dict[str, Any], build: Callable[..., Scenario]) -> None:
    scenario = build("nanotron", **words)
    accept_nanotron(scenario, export_plan(scenario, "nanotron"))
