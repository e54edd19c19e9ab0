"""What an administrator may register, that every mistake is named, and how placeholders are filled."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.launch.builders import EXAMPLES, templates
from tools.errors import InputError
from tools.launch.template import PLACEHOLDERS, check_command, fill, parse_templates, read_templates

VALUES = {name: f"value of {name}; $(id)" for name in PLACEHOLDERS}
words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


@given(st.lists(words | st.sampled_from([f"{{{name}}}" for name in PLACEHOLDERS])))
def test_placeholders_are_replaced_and_all_other_words_stay(rest: list[str]) -> None:
    command = ["run", '{"lr": 1}', "{}", "{0}", "a{ b }c", *(f"{{{name}}}" for name in PLACEHOLDERS)]
    try:
        check_command(["run", *rest], "command")
        command += rest
    except InputError:
        check_command(command, "command")
    expected = {f"{{{name}}}": value for name, value in VALUES.items()}
    assert fill(command, VALUES) == [expected.get(word, word) for word in command]


def test_the_examples_are_read_whole_and_a_file_without_templates_allows_nothing() -> None:
    examples = read_templates(EXAMPLES)
    assert {template.launcher for template in examples.values()} == {"local", "slurm", "kubernetes"}
    slurm = examples["torchtitan-slurm"].slurm
    assert slurm is not None
    assert slurm.gres == "gpu:h100"
    assert parse_templates({}) == {}


BAD_COMMANDS: list[object] = [
    [], "rm -rf", ["{scenario}"], ["run", "{steps2}"], ["run", "--steps={steps}"],
    ["run", "a\0b"],
]  # fmt: skip
CLAIM = {"namespace": "ml", "claim": "c"}


@pytest.mark.parametrize(
    ("launcher", "change", "field"),
    [
        ("local", {"comand": []}, "comand"),
        ("local", {"limits": {"wall_s": 60, "gpus": 1}}, "limits.gpus"),
        *(("local", {"limits": limits}, "limits.wall_s") for limits in ({}, {"wall_s": 0}, {"wall_s": "60"})),
        ("local", {"limits": {"wall_s": 60, "nodes": 2}}, "limits.nodes"),
        ("local", {"launcher": "ssh"}, "launcher"),
        ("local", {"name": "../a"}, "name"),
        *(("local", {"command": command}, "command") for command in BAD_COMMANDS),
        ("local", {"environment": {"A B": "1"}}, "environment"),
        ("local", {"command": ["run", 1]}, "command[1]"),
        ("local", {"environment": {"A": 1}}, "environment.A"),
        ("local", {"environment": {"A": "\0"}}, "environment.A"),
        ("local", {"environment_allowed": ["A=B"]}, "environment_allowed"),
        ("local", {"workdir": "relative"}, "workdir"),
        ("local", {"image": "x"}, "image"),
        ("local", {"slurm": {"gres": "gpu"}}, "slurm"),
        ("local", {"slurm": {"gress": "gpu"}}, "slurm.gress"),
        ("slurm", {"slurm": {"partition": "gpu --wrap=id"}}, "slurm.partition"),  # a second option
        ("kubernetes", {"image": ""}, "image"),
        ("kubernetes", {"command": ["run", "{rendezvous}"]}, "command"),
        ("kubernetes", {"environment": {"PET_NNODES": "1"}}, "environment"),
        ("kubernetes", {"environment_inherited": ["PATH"]}, "environment_inherited"),
        ("kubernetes", {"kubernetes": {"namespace": "ml"}}, "kubernetes.claim"),
        ("kubernetes", {"kubernetes": CLAIM | {"mount_path": "x"}}, "kubernetes.mount_path"),
    ],
)
def test_a_mistake_is_named_by_its_field(launcher: str, change: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as error:
        templates(**{"launcher": launcher, **change})
    assert error.value.path == f"template[0].{field}"


@pytest.mark.parametrize(
    "name",
    ["PATH", "LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONSTARTUP", "BASH_ENV", "ENV", "IFS",
     "HOME", "GCONV_PATH", "OPENSSL_CONF", "CUDA_INJECTION64_PATH",
     "ld_audit", "NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "CC", "SLURM_CONF", "ASAP_JOB", "PET_MASTER_ADDR"],
)  # fmt: skip
def test_no_request_can_be_allowed_to_choose_the_code_that_runs(name: str) -> None:
    with pytest.raises(InputError, match="decides what code runs"):
        templates(environment_allowed=[name])
