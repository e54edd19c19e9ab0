"""Our profiler as a component of torchtitan's configuration; no server answers, and training goes on."""

from dataclasses import fields
from pathlib import Path

import pytest

pytest.importorskip("torchtitan.tools.profiler", reason="needs torchtitan (make test-frameworks)")
pytestmark = pytest.mark.real


def test_torchtitan_builds_it_from_its_configuration_and_steps_it(tmp_path: Path) -> None:
    import torch

    from asap_client.torchtitan import AsapProfiler

    (tmp_path / "asap.key").write_text("asap_key\n")
    config = AsapProfiler.Config(server="http://127.0.0.1:9", key_file=str(tmp_path / "asap.key"))
    assert "profile_freq" in {field.name for field in fields(config)}, "torchtitan's own options stay"
    with config.build(global_step=0, base_folder=str(tmp_path)) as profiler:
        for _ in range(8):
            torch.ones(8, 8) @ torch.ones(8, 8)
            profiler.step()
    assert (tmp_path / "profiling/traces/summaries/rank0.summary.json").exists()
    assert profiler.upload.trace is None
