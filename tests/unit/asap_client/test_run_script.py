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
        (["torchrun", "--nproc-per-node", "8"], ["-m", "torchtitan.train", "--config", "llama.py"]),
        (["python", "-m", "torch.distributed.run", "--nnodes=2"], ["-m", "pkg.train"]),
        (["python"], ["-m", "pkg.train", "-m", "other"]),
    ],
)
def test_a_script_or_module_keeps_its_launcher_and_its_arguments(
    before: list[str], script: list[str]
) -> None:
    command = insert_capture([*before, *script], Path("out"), CaptureSchedule())
    inserted = ["--module", *script[1:]] if script[0] == "-m" else script
    assert command == [*before, *INSERTED, *inserted]


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
