"""From an order to a launcher's job, and keys of jobs: legal for every engine, one for each trial."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.graph.cases import small
from tools.errors import InputError
from tools.launch.folder import check_key
from tools.launch.template import Template, parse_templates
from tools.scenario import Plan, Scenario, parse_scenario
from tools.trials.order import RunLength, check_cluster, make_job, ranks_of, run_key, trial_key

LENGTH = RunLength(steps=7, warmup=2, profile_steps=1, seed=3)


def template(launcher: str = "slurm", argument: str = "{scenario}", **limits: int) -> Template:
    table: dict[str, Any] = {"name": "t", "launcher": launcher, "command": ["train", argument]}
    nodes = {"nodes": 8} if launcher == "slurm" else {}
    table["limits"] = {"wall_s": 60, "devices": 64, **nodes, **limits}
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


def test_a_template_that_wants_a_configuration_gets_the_frameworks_own() -> None:
    job = make_job(template(argument="{config}"), *parts(small()), LENGTH, 50)
    assert job.config is not None
    assert "tensor-model-parallel-size" in job.config.text
    job = make_job(
        template(argument="{config}"),
        *parts(small(training={**small()["training"], "framework": "nanotron"})),
        LENGTH,
        50,
    )
    assert job.config is not None
    assert "recompute_layer" in job.config.text
    without = small(training={**small()["training"], "framework": "internevo"})
    with pytest.raises(InputError, match="framework"):
        make_job(template(argument="{config}"), *parts(without), LENGTH, 50)


def test_ranks_follow_the_nodes_within_the_templates_limits_and_on_one_machine_there_is_one() -> None:
    raw = small(cluster={"device": "h100-sxm-80gb", "num_devices": 16}, plan=None)
    scenario = parse_scenario(raw, need_plan=False)
    assert ranks_of(template(), scenario) == (2, 8)
    assert ranks_of(template("local"), scenario) == (1, 16)
    with pytest.raises(InputError, match="at most 8 ranks"):
        check_cluster(template(devices=8), scenario)
    with pytest.raises(InputError, match="2 nodes"):
        check_cluster(template(nodes=1), scenario)


NAMES = st.text(st.sampled_from("abz09-_."), min_size=1, max_size=90)


@given(NAMES, NAMES, st.integers(0, 63), st.integers(0, 63), st.integers(1, 9))
def test_every_key_is_legal_for_a_launcher_and_no_two_trials_share_one(
    session: str, other: str, first: int, second: int, run: int
) -> None:
    check_key(run_key(trial_key(session, first), run))
    same = (session, first) == (other, second)
    assert (trial_key(session, first) == trial_key(other, second)) == same
