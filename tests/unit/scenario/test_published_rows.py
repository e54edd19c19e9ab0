"""Configurations that ran for real must be accepted: rules may not be tighter than the frameworks."""

import json
from pathlib import Path

import pytest

from tools.errors import InputError
from tools.scenario import parse_scenario

FOLDER = Path(__file__).resolve().parents[4] / "shared" / "groundtruth"


@pytest.mark.skipif(not FOLDER.is_dir(), reason="the shared folder with published measurements is not here")
@pytest.mark.parametrize(("file", "at_least"), [("dev", 500), ("sweeps", 1000), ("older_releases", 50)])
def test_every_published_configuration_that_ran_is_accepted(file: str, at_least: int) -> None:
    """A plan of a sweep that crashed may be refused, but only because it breaks a rule of its framework."""
    rows = [json.loads(line) for line in (FOLDER / f"{file}.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(rows) > at_least
    for row in rows:
        refusal = refused_field(row["scenario"])
        assert refusal is None or (row.get("crashed") is True and refusal == "plan.pp"), row["id"]


def refused_field(scenario: object) -> str | None:
    try:
        parse_scenario(scenario)
    except InputError as error:
        return error.field
    return None
