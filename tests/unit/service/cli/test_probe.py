"""`asap probe --preflight` as a user calls it."""

import json
from dataclasses import asdict, replace
from pathlib import Path

from tests.unit.probe.test_report import made_up
from tests.unit.service.cli.commands import REPO, Asap
from tools.probe.measured import RESULT

RECORDED = REPO / "tests/unit/probe/recorded"


def test_the_command_prints_what_costs_most_first_and_needs_no_folder(asap: Asap) -> None:
    result = asap("probe", "--preflight", "--results", str(RECORDED))
    assert result.status == 0, result.err
    first = result.out.splitlines()[0]
    assert "up to" in first
    assert "PCIe lanes 8" in result.out
    here = asap("probe", "--preflight", "--json").answer
    assert here["facts"]["cpus online"]
    assert asap("probe", "--device", "cpu").refused


def test_nodes_that_were_not_idle_are_measured_and_nothing_is_calibrated(asap: Asap, tmp_path: Path) -> None:
    for name, busy in (("idle", ()), ("loaded", ("node1 has 60% of its cores in use",))):
        (tmp_path / name).mkdir()
        (tmp_path / name / RESULT).write_text(json.dumps(asdict(replace(made_up(), busy=busy))))
        out = tmp_path / f"{name}-out"
        result = asap("probe", "--results", str(tmp_path / name), "--out", str(out))
        assert result.status == 0, result.err
        assert (out / "calibration.json").exists() == (not busy)
        assert (out / "runs.jsonl").exists() == (not busy)
        assert ("not calibrated" in result.out) == bool(busy)
