"""Configurations that ran for real must be accepted: rules may not be tighter than the frameworks."""

import json
from pathlib import Path

import pytest

from tools.scenario import parse_scenario

ROWS = Path(__file__).resolve().parents[4] / "shared" / "groundtruth" / "dev.jsonl"


@pytest.mark.skipif(not ROWS.is_file(), reason="the shared folder with published measurements is not here")
def test_every_published_configuration_is_accepted() -> None:
    rows = [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()]
    assert len(rows) > 500
    for row in rows:
        plan = parse_scenario(row["scenario"]).plan
        assert plan is not None, row["id"]
