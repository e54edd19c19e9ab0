"""What a request may ask for, and that a template's limits hold."""

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.launch.builders import templates
from tools.errors import InputError
from tools.launch.launcher import ConfigFile, Job, check_job, check_key, get_template

LIMITS = {"wall_s": 60, "devices": 8, "nodes": 2}
TEMPLATES = templates("slurm", limits=LIMITS, environment_allowed=["NCCL_DEBUG"])
JOB = Job("test", {"model": {}}, nnodes=2, nproc=4)


@pytest.mark.parametrize(
    "key", ["", "A", "../x", "a/b", "a.b", "-a", "a-", "a b", "a\n", "é", "a" * 41, ".", "a;id", None, 1]
)
def test_a_key_that_could_mean_more_than_a_name_is_refused(key: object) -> None:
    for plain in ("a", "k1", "session-1-trial-2", "0" * 40):
        check_key(plain)
    with pytest.raises(InputError, match="key"):
        check_key(key)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("nnodes", [3, 0]),
        ("nproc", [5, True, 1.0]),
        ("steps", [0, "1; id"]),
        ("warmup", [-1]),
        ("seed", [-1]),
        ("wall_s", [61, 0]),
        ("environment.LD_PRELOAD", [{"LD_PRELOAD": "x"}]),
        ("environment.NCCL_DEBUG", [{"NCCL_DEBUG": "a\0b"}, {"NCCL_DEBUG": 1}]),
        ("scenario", [[], {"a": float("nan")}, {"a": {1}}]),
        ("config.name", [ConfigFile(name, "") for name in ("../x", "scenario.json", "", ".bashrc")]),
        ("config.text", [ConfigFile("a.toml", "x" * 1_000_001)]),
    ],
)
def test_a_value_over_a_limit_or_out_of_range_is_refused(field: str, values: list[Any]) -> None:
    for within in (JOB, replace(JOB, wall_s=60, environment={"NCCL_DEBUG": "INFO"})):
        check_job(within, TEMPLATES["test"])
    for value in values:
        with pytest.raises(InputError) as error:
            check_job(replace(JOB, **{field.partition(".")[0]: value}), TEMPLATES["test"])
        assert error.value.field == field, value


@pytest.mark.parametrize(
    ("name", "launcher", "message"),
    [("tst", "slurm", "did you mean test"), ("test", "local", "no template for local is registered")],
)
def test_only_a_template_of_this_launcher_is_found(name: str, launcher: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        get_template(TEMPLATES, replace(JOB, template=name), launcher)


def test_jobs_have_equal_digests_if_they_are_equal_whatever_the_order_of_their_fields() -> None:
    job = replace(JOB, scenario={"a": 1, "b": {"c": 2, "d": 3}})
    assert job.digest() == replace(JOB, scenario={"b": {"d": 3, "c": 2}, "a": 1}).digest()
    others: list[dict[str, Any]] = [
        {"steps": 11},
        {"scenario": {"model": {"a": 1}}},
        {"environment": {"A": "1"}},
        {"config": ConfigFile("a", "b")},
    ]
    assert JOB.digest() not in {replace(JOB, **change).digest() for change in others}
