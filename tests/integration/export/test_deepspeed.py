"""DeepSpeed's own configuration class takes what is exported, batch arithmetic and all."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tools.frameworks import Export

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore")]

PLANS: list[dict[str, Any]] = [
    {},
    {"zero_stage": 1},
    {"zero_stage": 2, "recompute": "none"},
    {"zero_stage": 0, "dp_shard": 1},
    {"dp_shard": 8},
    {"tp": 4, "dp": 16, "dp_shard": 16, "zero_stage": 1},
    {"pp": 4, "dp": 16, "dp_shard": 16, "zero_stage": 1},
    {"cp": 4, "dp": 16, "dp_shard": 64},
    {"moe": True, "ep": 8, "zero_stage": 2},
    {"training": {"precision": "fp16"}},
    {"training": {"precision": "fp32"}},
]


class DataRanks:
    """What DeepSpeed asks of the code that splits a model: how many ranks see different data."""

    def __init__(self, count: int) -> None:
        self._count = count

    def get_data_parallel_world_size(self) -> int:
        return self._count


@pytest.fixture
def accepted(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any], int], Any]:
    module = pytest.importorskip("deepspeed.runtime.config", reason="deepspeed is not installed")
    # Without a process group DeepSpeed assumes one rank; the real one needs as many processes as ranks.
    monkeypatch.setattr(module.dist, "get_rank", lambda: 0)

    def call(settings: dict[str, Any], dp: int) -> Any:  # noqa: ANN401 - DeepSpeed's own type
        return module.DeepSpeedConfig(settings, mpu=DataRanks(dp))

    return call


@pytest.mark.parametrize("words", PLANS, ids=str)
def test_deepspeed_takes_the_configuration_and_means_the_plan(
    exported: Callable[..., Export], accepted: Callable[..., Any], words: dict[str, Any]
) -> None:
    settings = json.loads(exported("deepspeed", "deepspeed", **words).text)
    config = accepted(settings, words.get("dp", 64))
    assert config.train_batch_size == 256
    assert config.train_micro_batch_size_per_gpu == 1
    assert config.zero_optimization_stage == words.get("zero_stage", 3)
    assert config.tensor_parallel_config.autotp_size in (0, words.get("tp", 1))
    assert config.pipeline["stages"] in ("auto", words.get("pp", 1))
    assert config.expert_parallel_config.autoep_size == words.get("ep", 1)
    hybrid = words.get("dp_shard") == 8
    assert config.zero_config.zero_hpz_partition_size == (8 if hybrid else 1)


def test_deepspeed_refuses_batches_that_do_not_multiply(
    exported: Callable[..., Export], accepted: Callable[..., Any]
) -> None:
    settings = json.loads(exported("deepspeed", "deepspeed").text)
    with pytest.raises(AssertionError):
        accepted(settings, 32)
