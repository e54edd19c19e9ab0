"""NeMo Automodel reads the exported sections: its own parser, and its meshes on a fake world."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from tools.frameworks import Export, export_plan
from tools.scenario import Scenario

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore")]

PLANS: list[dict[str, Any]] = [
    {"zero_stage": 3},
    {"zero_stage": 3, "dp_shard": 8},
    {"zero_stage": 3, "tp": 4, "cp": 2, "dp": 8, "dp_shard": 16, "sequence_parallel": True},
    {"zero_stage": 3, "pp": 4, "dp": 16, "dp_shard": 16, "schedule": "gpipe", "recompute": "none"},
    {"zero_stage": 3, "pp": 2, "tp": 2, "dp": 16, "dp_shard": 16, "micro_batch_size": 2},
    {"moe": True, "zero_stage": 3, "ep": 8, "recompute": "selective"},
    {"zero_stage": 0, "dp_shard": 1, "recompute": "full"},
]


@pytest.fixture
def world() -> Iterator[None]:
    """64 ranks of which only this one runs."""
    dist = pytest.importorskip("torch.distributed")
    store = pytest.importorskip("torch.testing._internal.distributed.fake_pg").FakeStore()
    dist.init_process_group("fake", rank=0, world_size=64, store=store)
    yield
    dist.destroy_process_group()


def accept_automodel(scenario: Scenario, export: Export) -> Any:  # noqa: ANN401 - a class of the framework
    """What Automodel makes of the file; it refuses keys and combinations it does not know."""
    recipes = pytest.importorskip(
        "nemo_automodel.recipes._dist_utils", reason="nemo-automodel is not installed"
    )
    settings, plan = yaml.safe_load(export.text), scenario.plan
    assert plan is not None
    parsed = recipes.parse_distributed_section(settings["distributed"])
    sizes = parsed["parallelism_sizes"]
    assert (sizes.tp_size, sizes.pp_size, sizes.cp_size, sizes.ep_size) == (
        plan.tp,
        plan.pp,
        plan.cp,
        plan.ep,
    )
    local, batch = settings["step_scheduler"]["local_batch_size"], scenario.training.global_batch_size
    if plan.pp > 1:
        assert parsed["pipeline_config"].pp_microbatch_size == plan.micro_batch_size
        assert batch == plan.dp * local
    else:
        assert batch % (plan.dp * local) == 0
    return parsed


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("words", PLANS, ids=str)
def test_automodel_builds_the_mesh_of_the_plan(words: dict[str, Any], build: Callable[..., Scenario]) -> None:
    scenario = build("torch-fsdp2", **words)
    parsed = accept_automodel(scenario, export_plan(scenario, "automodel"))
    meshes = pytest.importorskip("nemo_automodel.components.distributed.mesh_utils")
    mesh, _ = meshes._create_device_meshes(
        parsed["strategy_config"], parsed["parallelism_sizes"], world_size=scenario.cluster.num_devices
    )
    plan = scenario.plan
    assert plan is not None
    if plan.zero_stage == 0:
        assert mesh is None
    else:
        sizes = dict(zip(mesh.mesh_dim_names, mesh.shape, strict=True))
        assert sizes["dp_replicate"] * sizes["dp_shard"] == plan.dp
        assert sizes["dp_shard"] * sizes["cp"] == plan.dp_shard
