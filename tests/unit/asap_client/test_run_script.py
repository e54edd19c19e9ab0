"""The capture put between launcher and script."""

from pathlib import Path

import pytest

from asap_client.capture import CaptureSchedule
from asap_client.errors import InputError
from asap_client.run_script import insert_capture

INSERTED = ["-m", "asap_client.run_script", "--out", "out", "--wait", "3", "--warmup", "1", "--active", "3"]


@pytest.mark.parametrize(
    ("before", "script"),
    [
        (["torchrun", "--nproc-per-node", "8"], ["train.py", "--lr", "1", "other.py"]),
        (["python", "-m", "torch.distributed.run", "--nnodes=2"], ["src/train.py"]),
        (["python", "-u"], ["train.py"]),
    ],
)
def test_the_script_keeps_its_launcher_and_its_arguments(before: list[str], script: list[str]) -> None:
    assert insert_capture([*before, *script], Path("out"), CaptureSchedule()) == [*before, *INSERTED, *script]


def test_raw_traces_can_be_left_out() -> None:
    command = insert_capture(["python", "t.py"], Path("out"), CaptureSchedule(), keep_traces=False)
    assert command[-2:] == ["--summaries-only", "t.py"]


@pytest.mark.parametrize(
    "command",
    [[], ["train.py"], ["-m", "pkg.train"], ["torchrun", "--nproc-per-node", "2"], ["bash", "run.sh"]],
)
def test_a_command_without_a_python_script_is_the_users_error(command: list[str]) -> None:
    with pytest.raises(InputError, match="COMMAND"):
        insert_capture(command, Path("out"), CaptureSchedule())


@pytest.mark.parametrize(
    ("before", "module"),
    [
        (["torchrun", "--nproc-per-node", "8"], ["torchtitan.train", "--config", "llama.py"]),
        (["python", "-m", "torch.distributed.run", "--nnodes=2"], ["pkg.train"]),
        (["python"], ["pkg.train", "-m", "other"]),
    ],
)
def test_a_module_is_run_like_a_script(before: list[str], module: list[str]) -> None:
    made = insert_capture([*before, "-m", *module], Path("out"), CaptureSchedule())
    assert made == [*before, *INSERTED, "--module", *module]
