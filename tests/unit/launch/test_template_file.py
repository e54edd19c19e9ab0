"""What an administrator may register, and that every mistake is named."""

from pathlib import Path
from typing import Any

import pytest

from tools.errors import InputError
from tools.launch.template import parse_templates, read_templates

REPO = Path(__file__).resolve().parents[3]
LOCAL = {"name": "a", "launcher": "local", "command": ["run", "{out}"], "limits": {"wall_s": 60}}
KUBERNETES = {
    "name": "k",
    "launcher": "kubernetes",
    "command": ["run"],
    "image": "trainer:1",
    "limits": {"wall_s": 60},
    "kubernetes": {"namespace": "ml", "claim": "trials"},
}


def parse(table: dict[str, Any]) -> None:
    parse_templates({"template": [table]})


def test_the_example_is_read_whole() -> None:
    templates = read_templates(REPO / "examples/launch-templates.toml")
    assert {template.launcher for template in templates.values()} == {"local", "slurm", "kubernetes"}
    slurm = templates["torchtitan-slurm"].slurm
    assert slurm is not None
    assert slurm.gres == "gpu:h100"


def test_a_file_without_templates_allows_nothing() -> None:
    assert parse_templates({}) == {}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"comand": []}, "template[0].comand"),
        ({"limits": {"wall_s": 60, "gpus": 1}}, "template[0].limits.gpus"),
        ({"limits": {"wall_s": 0}}, "template[0].limits.wall_s"),
        ({"limits": {}}, "template[0].limits.wall_s"),
        ({"limits": {"wall_s": "60"}}, "template[0].limits.wall_s"),
        ({"limits": {"wall_s": 60, "nodes": 2}}, "template[0].limits.nodes"),
        ({"launcher": "ssh"}, "template[0].launcher"),
        ({"name": "../a"}, "template[0].name"),
        ({"command": []}, "template[0].command"),
        ({"command": "rm -rf"}, "template[0].command"),
        ({"command": ["run", 1]}, "template[0].command"),
        ({"command": ["{scenario}"]}, "template[0].command"),
        ({"command": ["run", "{steps2}"]}, "template[0].command"),
        ({"command": ["run", "--steps={steps}"]}, "template[0].command"),
        ({"command": ["run", "a\0b"]}, "template[0].command"),
        ({"environment": {"A B": "1"}}, "template[0].environment"),
        ({"environment": {"A": 1}}, "template[0].environment"),
        ({"environment": {"A": "\0"}}, "template[0].environment.A"),
        ({"environment_allowed": ["A=B"]}, "template[0].environment_allowed"),
        ({"workdir": "relative"}, "template[0].workdir"),
        ({"image": "x"}, "template[0].image"),
        ({"slurm": {"gres": "gpu"}}, "template[0].slurm"),
        ({"slurm": {"gress": "gpu"}}, "template[0].slurm.gress"),
    ],
)
def test_a_mistake_is_named_by_its_field(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as error:
        parse(LOCAL | change)
    assert error.value.field == field


@pytest.mark.parametrize(
    "name",
    ["PATH", "LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONSTARTUP", "BASH_ENV", "ENV", "IFS",
     "HOME", "GCONV_PATH", "OPENSSL_CONF", "CUDA_INJECTION64_PATH",
     "ld_audit", "NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "CC", "SLURM_CONF", "ASAP_JOB", "PET_MASTER_ADDR"],
)  # fmt: skip
def test_no_request_can_be_allowed_to_choose_the_code_that_runs(name: str) -> None:
    with pytest.raises(InputError, match="decides what code runs"):
        parse(LOCAL | {"environment_allowed": [name]})


@pytest.mark.parametrize(
    "name", ["NCCL_DEBUG", "OMP_NUM_THREADS", "TORCH_NCCL_TRACE_BUFFER_SIZE", "NCCL_ALGO"]
)
def test_a_request_can_be_allowed_to_tune(name: str) -> None:
    parse(LOCAL | {"environment_allowed": [name]})


def test_two_templates_of_one_name_are_refused() -> None:
    with pytest.raises(InputError, match=r"template\[1\]\.name"):
        parse_templates({"template": [LOCAL, LOCAL]})


@pytest.mark.parametrize(
    "content", [{"templates": []}, {"template": {}}, {"template": [1]}, {"template": "x"}]
)
def test_a_file_of_another_shape_is_refused(content: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        parse_templates(content)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"image": ""}, "template[0].image"),
        ({"command": ["run", "{rendezvous}"]}, "template[0].command"),
        ({"environment": {"PET_NNODES": "1"}}, "template[0].environment"),
        ({"environment_inherited": ["PATH"]}, "template[0].environment_inherited"),
        ({"kubernetes": {"namespace": "ml"}}, "template[0].kubernetes.claim"),
        (
            {"kubernetes": {"namespace": "ml", "claim": "c", "mount_path": "x"}},
            "template[0].kubernetes.mount_path",
        ),
    ],
)
def test_a_mistake_about_kubernetes_is_named_by_its_field(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as error:
        parse(KUBERNETES | change)
    assert error.value.field == field


def test_kubernetes_needs_its_settings() -> None:
    table = {name: value for name, value in KUBERNETES.items() if name != "kubernetes"}
    with pytest.raises(InputError, match="namespace and a claim"):
        parse(table)


def test_an_option_of_slurm_cannot_hold_a_second_option() -> None:
    table = LOCAL | {"launcher": "slurm", "slurm": {"partition": "gpu --wrap=id"}}
    with pytest.raises(InputError, match=r"slurm\.partition"):
        parse(table)


@pytest.mark.parametrize("text", [b"[[template", b"\xff", b""])
def test_a_file_that_is_no_toml_is_told_in_one_line(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "templates.toml"
    if text:
        path.write_bytes(text)
    with pytest.raises(InputError, match="launch templates"):
        read_templates(path)
