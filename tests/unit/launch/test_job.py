"""What a request may say, and that a template's limits hold."""

from dataclasses import replace
from typing import Any

import pytest

from tools.errors import InputError
from tools.launch.job import ConfigFile, Job, check_job, check_key, get_template
from tools.launch.template import parse_templates

TEMPLATES = parse_templates(
    {
        "template": [
            {
                "name": "a",
                "launcher": "slurm",
                "command": ["run"],
                "limits": {"wall_s": 60, "devices": 8, "nodes": 2},
                "environment_allowed": ["NCCL_DEBUG"],
            }
        ]
    }
)
JOB = Job("a", {"model": {}}, nnodes=2, nproc=4)


@pytest.mark.parametrize("key", ["a", "k1", "session-1-trial-2", "0" * 40])
def test_a_plain_key_is_taken(key: str) -> None:
    check_key(key)


@pytest.mark.parametrize(
    "key", ["", "A", "../x", "a/b", "a.b", "-a", "a-", "a b", "a\n", "é", "a" * 41, ".", "a;id", None, 1]
)
def test_a_key_that_could_mean_more_than_a_name_is_refused(key: object) -> None:
    with pytest.raises(InputError, match="key"):
        check_key(key)


def test_a_job_within_the_limits_is_taken() -> None:
    check_job(JOB, TEMPLATES["a"])
    check_job(replace(JOB, wall_s=60, environment={"NCCL_DEBUG": "INFO"}), TEMPLATES["a"])


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"nnodes": 3}, "nnodes"),
        ({"nnodes": 0}, "nnodes"),
        ({"nproc": 5}, "nproc"),
        ({"nproc": True}, "nproc"),
        ({"nproc": 1.0}, "nproc"),
        ({"steps": 0}, "steps"),
        ({"steps": "1; id"}, "steps"),
        ({"warmup": -1}, "warmup"),
        ({"seed": -1}, "seed"),
        ({"wall_s": 61}, "wall_s"),
        ({"wall_s": 0}, "wall_s"),
        ({"environment": {"LD_PRELOAD": "x"}}, "environment.LD_PRELOAD"),
        ({"environment": {"NCCL_DEBUG": "a\0b"}}, "environment.NCCL_DEBUG"),
        ({"environment": {"NCCL_DEBUG": 1}}, "environment.NCCL_DEBUG"),
        ({"scenario": []}, "scenario"),
        ({"scenario": {"a": float("nan")}}, "scenario"),
        ({"scenario": {"a": {1}}}, "scenario"),
        ({"config": ConfigFile("../x", "")}, "config.name"),
        ({"config": ConfigFile("scenario.json", "")}, "config.name"),
        ({"config": ConfigFile("", "")}, "config.name"),
        ({"config": ConfigFile(".bashrc", "")}, "config.name"),
        ({"config": ConfigFile("a.toml", "x" * 1_000_001)}, "config.text"),
    ],
)
def test_what_is_over_a_limit_or_out_of_range_is_refused(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as error:
        check_job(replace(JOB, **change), TEMPLATES["a"])
    assert error.value.field == field


def test_an_unregistered_template_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match="template"):
        get_template(TEMPLATES, replace(JOB, template="b"), "slurm")


def test_a_template_of_another_launcher_is_not_offered() -> None:
    with pytest.raises(InputError, match="no template for local is registered"):
        get_template(TEMPLATES, JOB, "local")


def test_equal_jobs_have_equal_digests_whatever_the_order_of_their_fields() -> None:
    one = replace(JOB, scenario={"a": 1, "b": {"c": 2, "d": 3}})
    other = replace(JOB, scenario={"b": {"d": 3, "c": 2}, "a": 1})
    assert one.digest() == other.digest()


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 11},
        {"scenario": {"model": {"a": 1}}},
        {"environment": {"A": "1"}},
        {"config": ConfigFile("a", "b")},
    ],
)
def test_different_jobs_have_different_digests(change: dict[str, Any]) -> None:
    assert JOB.digest() != replace(JOB, **change).digest()
