"""The testbed of `make bench NAME=trials`: two hosts with names of their own, nothing left behind."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.testbed.launching import run_plan
from benchmarks.testbed.workloads import WORKLOADS, Workload, plan_name

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("tc") is None, reason="needs root and iproute2"
)


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_every_workload_has_a_space_that_can_be_measured_whole(workload: Workload) -> None:
    plans = workload.plans()
    assert 15 <= len(plans) <= 40
    assert workload.default_plan in plans
    assert len({plan_name(plan) for plan in plans}) == len(plans)


@needs_root
@pytest.mark.real
@pytest.mark.slow
def test_a_plan_trains_over_two_hosts_and_leaves_nothing(tmp_path: Path) -> None:
    workload = WORKLOADS[0]
    plan = next(plan for plan in workload.plans() if plan_name(plan) == "pp2-dp2-mb2")
    measured = run_plan(workload, plan, tmp_path, "tiny", steps=2, warmup=1, profile_steps=1)
    result = json.loads((tmp_path / "jobs" / "tiny" / "out" / "result.json").read_text())
    assert result["fingerprint"]["nodes"] == {"host1": 2, "host2": 2}
    assert result["losses"][-1] < result["losses"][0]
    assert measured.measured.terms_s["compute"] > 0
    links = subprocess.run(["ip", "link"], capture_output=True, text=True, check=True).stdout
    assert "port1" not in links
    assert "bridge" not in links
