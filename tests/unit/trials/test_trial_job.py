"""From an order to a launcher's job."""

from typing import Any

import pytest

from tests.unit.graph.cases import small
from tools.errors import InputError
from tools.launch.template import Template, parse_templates
from tools.scenario import Plan, Scenario, parse_scenario
from tools.trials.order import RunLength, check_cluster, make_job, ranks_of

LENGTH = RunLength(steps=7, warmup=2, profile_steps=1, seed=3)


def template(
    launcher: str = "slurm",
    command: tuple[str, ...] = ("train", "{scenario}"),
    limits: dict[str, int] | None = None,
) -> Template:
    table: dict[str, Any] = {"name": "t", "launcher": launcher, "command": list(command)}
    table["limits"] = {
        "wall_s": 60,
        "devices": 64,
        **({"nodes": 8} if launcher == "slurm" else {}),
        **(limits or {}),
    }
    return parse_templates({"template": [table]})["t"]


def parts(raw: dict[str, Any]) -> tuple[Scenario, Plan]:
    scenario = parse_scenario(raw)
    assert scenario.plan is not None
    return scenario, scenario.plan


def test_a_job_has_the_plan_the_lengths_and_nothing_else_of_the_request() -> None:
    raw = small(notes="words", constraints={"tp": 8}, id="x")
    job = make_job(template(), *parts(raw), LENGTH, 50)
    assert set(job.scenario) == {"model", "cluster", "training", "plan"}
    assert (job.steps, job.warmup, job.profile_steps, job.seed, job.wall_s) == (7, 2, 1, 3, 50)
    assert job.config is None


def test_ranks_follow_the_nodes_and_on_one_machine_there_is_one() -> None:
    raw = small(cluster={"device": "h100-sxm-80gb", "num_devices": 16}, plan=None)
    scenario = parse_scenario(raw, need_plan=False)
    assert ranks_of(template(), scenario) == (2, 8)
    assert ranks_of(template("local"), scenario) == (1, 16)


def test_a_template_that_wants_a_configuration_gets_the_frameworks_own() -> None:
    raw = small()
    job = make_job(template(command=("train", "{config}")), *parts(raw), LENGTH, 50)
    assert job.config is not None
    assert "tensor-model-parallel-size" in job.config.text


def test_a_framework_without_an_export_is_refused_where_one_is_needed() -> None:
    raw = small(training={**small()["training"], "framework": "nanotron"})
    with pytest.raises(InputError, match="framework"):
        make_job(template(command=("train", "{config}")), *parts(raw), LENGTH, 50)


@pytest.mark.parametrize(
    ("devices", "limits", "field"), [(16, {"devices": 8}, "at most 8 ranks"), (16, {"nodes": 1}, "2 nodes")]
)
def test_a_cluster_beyond_the_templates_limits_is_refused(
    devices: int, limits: dict[str, int], field: str
) -> None:
    raw = small(cluster={"device": "h100-sxm-80gb", "num_devices": devices}, plan=None)
    with pytest.raises(InputError, match=field):
        check_cluster(template(limits=limits), parse_scenario(raw, need_plan=False))
