"""The testbed of `make bench-trials`: two hosts with names of their own, nothing left behind."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.testbed import hosts
from benchmarks.testbed.launching import run_plan, write_template
from benchmarks.testbed.workloads import WORKLOADS, Workload, plan_name
from tools.launch.template import read_templates

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("tc") is None, reason="needs root and iproute2"
)


def test_without_root_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(hosts.TestbedError, match="run it as root"), hosts.hosts(2, 200):
        pass


def test_the_template_registers_a_command_of_numbers_and_paths(tmp_path: Path) -> None:
    (template,) = read_templates(write_template(tmp_path / "templates.toml")).values()
    assert template.launcher == "local"
    assert template.environment_allowed == ()
    assert {"{scenario}", "{out}", "{nproc}", "{steps}", "{seed}"} <= set(template.command)


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


FAILS_ON_ONE_HOST = """
import os, pathlib, sys, time
pathlib.Path(sys.argv[-1], "began" + os.environ["GROUP_RANK"]).touch()
while not all(pathlib.Path(sys.argv[-1], name).exists() for name in ("began0", "began1")):
    time.sleep(0.05)
if os.environ["GROUP_RANK"] == "1":
    sys.exit(3)
time.sleep(600)
"""


@needs_root
@pytest.mark.real
@pytest.mark.slow
def test_a_host_that_fails_ends_the_others(tmp_path: Path) -> None:
    """Both have begun when one fails; the other would sleep on for ten minutes."""
    (tmp_path / "fails_on_one_host.py").write_text(FAILS_ON_ONE_HOST)
    run = f"sys.exit(run_on_hosts(['fails_on_one_host', {str(tmp_path)!r}], 2, 2, 200))"
    command = [sys.executable, "-c", f"import sys; from benchmarks.testbed.hosts import run_on_hosts; {run}"]
    paths = os.pathsep.join([str(tmp_path), str(Path(hosts.__file__).parents[2])])
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, timeout=120, check=False)
    assert done.returncode not in (0, None)
    assert sorted(file.name for file in tmp_path.glob("began*")) == ["began0", "began1"]
    left = subprocess.run(["pgrep", "-f", "fails_on_one_host"], capture_output=True, text=True, check=False)
    assert left.stdout == ""
