"""The capture put between launcher and script."""

from pathlib import Path

import pytest

from asap_client.capture import CaptureSchedule
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
