"""Accelerate loads the exported file as `accelerate launch` would, and builds the plan's mesh from it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.frameworks import Export

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore")]

PLANS: list[dict[str, Any]] = [
    {},
    {"zero_stage": 2, "dp_shard": 8, "recompute": "none"},
    {"tp": 4, "dp": 16, "dp_shard": 16},
    {"tp": 2, "cp": 2, "dp": 16, "dp_shard": 16},
    {"zero_stage": 1},
    {"zero_stage": 0, "dp_shard": 1},
    {"training": {"precision": "fp16"}},
]


def written(export: Export, folder: Path) -> str:
    path = folder / export.file_name
    path.write_text(export.text)
    return str(path)


@pytest.mark.parametrize("words", PLANS, ids=str)
def test_accelerate_loads_the_file(
    exported: Callable[..., Export], tmp_path: Path, words: dict[str, Any]
) -> None:
    config_args = pytest.importorskip(
        "accelerate.commands.config.config_args", reason="accelerate is not installed"
    )
    export = exported("accelerate", "torch-fsdp2" if words.get("zero_stage") != 1 else "deepspeed", **words)
    config = config_args.load_config_from_file(written(export, tmp_path))
    assert config.num_processes == 64
    assert config.num_machines == 8
    kinds = {0: "MULTI_GPU", 1: "DEEPSPEED"}
    assert config.distributed_type.value == kinds.get(words.get("zero_stage", 3), "FSDP")


@pytest.mark.parametrize("words", PLANS, ids=str)
def test_every_setting_is_an_option_of_accelerate_launch(
    exported: Callable[..., Export], words: dict[str, Any]
) -> None:
    launch = pytest.importorskip("accelerate.commands.launch", reason="accelerate is not installed")
    options = {action.dest for action in launch.launch_command_parser()._actions}
    export = exported("accelerate", "torch-fsdp2" if words.get("zero_stage") != 1 else "deepspeed", **words)
    settings = yaml.safe_load(export.text)
    for section in ("fsdp_config", "parallelism_config", "deepspeed_config"):
        assert set(settings.get(section, {})) <= options


@pytest.mark.parametrize("words", [plan for plan in PLANS if plan.get("zero_stage", 3) > 1], ids=str)
def test_the_mesh_covers_all_devices(exported: Callable[..., Export], words: dict[str, Any]) -> None:
    module = pytest.importorskip("accelerate.parallelism_config", reason="accelerate is not installed")
    settings = yaml.safe_load(exported("accelerate", "torch-fsdp2", **words).text)["parallelism_config"]
    sizes = {key.removeprefix("parallelism_config_"): value for key, value in settings.items()}
    config = module.ParallelismConfig(**sizes)
    assert config.total_size == 64
    assert config.data_parallel_size == words.get("dp", 64)
    assert config.dp_shard_size * config.cp_size == words.get("dp_shard", 64)
