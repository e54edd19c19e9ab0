"""torchtitan 0.3's own configuration manager, mesh and pipeline split take what is exported."""

import tomllib
from collections.abc import Callable
from typing import Any

import pytest

from tools.frameworks import Export

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore")]

PIPED = {"pp": 4, "dp": 8, "dp_shard": 8, "tp": 2}
PLANS: list[dict[str, Any]] = [
    {},
    {"dp_shard": 8, "zero_stage": 2, "recompute": "selective"},
    {"dp_shard": 1, "zero_stage": 0, "recompute": "none"},
    {"tp": 4, "dp": 16, "dp_shard": 16},
    {"tp": 4, "dp": 16, "dp_shard": 16, "sequence_parallel": False},
    {"tp": 2, "cp": 4, "dp": 8, "dp_shard": 16},
    PIPED,
    PIPED | {"micro_batch_size": 2, "schedule": "gpipe"},
    PIPED | {"vpp": 5, "schedule": "interleaved"},
    PIPED | {"vpp": 2, "schedule": "zero_bubble"},
    {"moe": True, "ep": 8},
    {"moe": True, "ep": 16, "tp": 2, "dp": 32, "dp_shard": 32},
    {"training": {"precision": "fp32"}},
]


def options_of(export: Export) -> list[str]:
    lines = [line for line in export.text.splitlines() if line.startswith("#   ")]
    return [word for line in lines for word in line.lstrip("# ").split()]


def parsed(export: Export, moe: bool) -> Any:  # noqa: ANN401 - torchtitan's own type
    manager = pytest.importorskip("torchtitan.config.manager", reason="torchtitan is not installed")
    module = ["--module", "deepseek_v3", "--config", "deepseek_v3_16b"] if moe else []
    return manager.ConfigManager().parse_args(
        [*(module or ["--module", "llama3", "--config", "llama3_70b"]), *options_of(export)]
    )


@pytest.mark.parametrize("words", PLANS, ids=str)
def test_torchtitan_takes_the_options_and_means_the_plan(
    exported: Callable[..., Export], words: dict[str, Any]
) -> None:
    config = parsed(exported("torchtitan", "torchtitan", **words), moe=bool(words.get("moe")))
    dims = pytest.importorskip("torchtitan.distributed.parallel_dims").ParallelDims
    mesh = dims.from_config(config.parallelism, world_size=64)
    expected = {"tp": 1, "pp": 1, "cp": 1, "ep": 1} | {
        key: words[key] for key in words if key in ("tp", "pp", "cp", "ep")
    }
    assert {name: getattr(mesh, name) for name in expected} == expected
    assert mesh.dp_shard * mesh.cp == words.get("dp_shard", 64)
    assert mesh.dp_replicate * mesh.dp_shard == words.get("dp", 64)
    assert config.training.global_batch_size == 256
    kind = {"full": "FullAC", "selective": "SelectiveAC", "none": "NoneType"}[words.get("recompute", "full")]
    assert type(config.activation_checkpoint).__qualname__.startswith(kind)


@pytest.mark.parametrize("words", [plan for plan in PLANS if "pp" in plan], ids=str)
def test_torchtitan_splits_the_model_into_the_plan_s_chunks(
    exported: Callable[..., Export], words: dict[str, Any]
) -> None:
    config = parsed(exported("torchtitan", "torchtitan", **words), moe=False)
    pipeline = pytest.importorskip("torchtitan.distributed.pipeline_parallel")
    dims = pytest.importorskip("torchtitan.distributed.parallel_dims").ParallelDims
    mesh = dims.from_config(config.parallelism, world_size=64)
    chunks, layers, first, last = pipeline._get_pipeline_metadata(
        mesh, config.parallelism, config.model_spec.model
    )
    parts = pipeline._generate_llm_fqn_per_model_part(chunks, layers, first, last)
    assert len(parts) == chunks == words["pp"] * words.get("vpp", 1)
    assert all(any("layers" in name for name in part) for part in parts)


@pytest.mark.parametrize("words", PLANS, ids=str)
def test_the_tables_are_fields_of_torchtitan_s_classes(
    exported: Callable[..., Export], words: dict[str, Any]
) -> None:
    config = pytest.importorskip("torchtitan.config", reason="torchtitan is not installed")
    tables = tomllib.loads(exported("torchtitan", "torchtitan", **words).text)
    config.ParallelismConfig(**tables["parallelism"])
    config.TrainingConfig(**tables["training"])
