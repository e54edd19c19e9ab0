"""A trial's profile as terms of a step; none where there is nothing to read."""

from pathlib import Path

import pytest

from tools.scenario import Plan
from tools.trials.calibrate import read_terms

TRACES = Path(__file__).resolve().parents[3] / "examples" / "traces" / "ddp-gloo-straggler"
ONES = dict.fromkeys(("tp", "pp", "vpp", "cp", "ep", "etp", "dp_shard", "micro_batch_size"), 1)
DDP = Plan.model_validate(
    {**ONES, "dp": 2, "zero_stage": 0, "sequence_parallel": False, "recompute": "none", "schedule": "1f1b"}
)


def test_a_profile_tells_the_seconds_of_a_steps_parts() -> None:
    terms = read_terms(TRACES, DDP)
    assert terms is not None
    assert terms["compute"] > 0
    assert terms["dp_comm_exposed"] > 0
    assert all(seconds >= 0 for seconds in terms.values())


@pytest.mark.parametrize("content", [None, "", "{", '{"traceEvents": []}'])
def test_a_folder_without_a_whole_step_tells_nothing(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "rank0.json").write_text(content)
    assert read_terms(tmp_path, DDP) is None
    assert read_terms(tmp_path / "none", DDP) is None
