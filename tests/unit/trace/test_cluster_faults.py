"""Faults of jobs over several nodes: from simulated traces to the first cause, its place and its lever."""

import json
from pathlib import Path

import pytest

from benchmarks.cluster_faults import ClusterCase, judge
from benchmarks.simulated_cluster import (
    PER_NODE,
    ClusterFault,
    FaultKind,
    SimulatedCluster,
    SimulatedJob,
    step_seconds,
)
from service.cli.main import main
from tools.trace.report import analyse_folder

ON_RAILS = SimulatedJob(4, "tp_dp", layers=3, layer_bytes=900e6, seed=5)
EXPERTS = SimulatedJob(4, "moe", layers=3, seed=6)
SHARDED = SimulatedJob(2, "fsdp", layers=3, layer_bytes=330e6, seed=7)
SMALL = SimulatedJob(2, "hsdp", layers=3, layer_bytes=20e6, kernel_scale=0.15, seed=8)


@pytest.mark.parametrize(
    ("job", "fault"),
    [
        (SHARDED, ClusterFault("card", (3,), speed=0.5)),
        (ON_RAILS, ClusterFault("card", (13,), speed=0.2)),
        (ON_RAILS, ClusterFault("rail", speed=0.5, rail=6)),
        (EXPERTS, ClusterFault("card", (19,), speed=0.2)),
        (SHARDED, ClusterFault("switch", speed=0.5)),
        (ON_RAILS, ClusterFault("throttled", (9,), speed=0.7)),
        (ON_RAILS, ClusterFault("late_host", (20,), delay_ms=2)),
        (ON_RAILS, ClusterFault("data_loader", tuple(range(8, 16)), delay_ms=15)),
        (EXPERTS, ClusterFault("experts", (17,), speed=0.4)),
        (SMALL, ClusterFault("numa", (4, 5, 6, 7), speed=0.25)),
        (ON_RAILS, ClusterFault("retries", (5,), delay_ms=5)),
        (ON_RAILS, ClusterFault("synchronisation", delay_ms=1.5)),
        (SHARDED, ClusterFault("recompilation", (2,), delay_ms=200, marked=True)),
        (SHARDED, ClusterFault("checkpoint", delay_ms=150)),
        (EXPERTS, ClusterFault("garbage_collection", delay_ms=100)),
    ],
    ids=lambda value: value.kind if isinstance(value, ClusterFault) else value.layout,
)
def test_a_fault_across_nodes_is_named_with_its_place_and_lever(
    job: SimulatedJob, fault: ClusterFault
) -> None:
    judged = judge(ClusterCase("developed", job, fault))
    assert judged.loss > 0.08  # the fault happened
    assert judged.problem == ""


@pytest.mark.parametrize("job", [ON_RAILS, EXPERTS, SHARDED, SMALL], ids=lambda job: job.layout)
def test_a_healthy_job_over_nodes_has_no_fault(job: SimulatedJob) -> None:
    assert judge(ClusterCase("developed", job, ClusterFault())).problem == ""


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (ClusterFault("late_host", (9,), delay_ms=2), "exposed_dp"),
        (ClusterFault("switch", speed=0.5), "slow_link"),
    ],
    ids=["late host", "switch"],
)
def test_one_rank_of_each_node_does_not_blame_a_link_for_whom_nobody_profiled(
    fault: ClusterFault, cause: str, tmp_path: Path
) -> None:
    """Waiting for rank 9 was a slow link of ranks 8 to 15, and the one rail that was seen the slow one."""
    SimulatedCluster(ON_RAILS, fault).run().write(tmp_path)
    for file in tmp_path.iterdir():
        if int(file.stem.removeprefix("rank")) % PER_NODE:
            file.unlink()
    diagnosis = analyse_folder(tmp_path).report.diagnosis
    assert diagnosis is not None
    assert (diagnosis.causes[0].cause, diagnosis.causes[0].ranks) == (cause, [])


@pytest.mark.parametrize(("kind", "speed"), [("none", 1.0), ("switch", 0.2)])
def test_a_network_at_a_fifth_of_its_speed_is_not_called_computing(
    kind: FaultKind, speed: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was, because the bus was compared with one card although eight ranks use eight."""
    fault = ClusterFault(kind, speed=speed)
    SimulatedCluster(SHARDED, fault).run().write(tmp_path)
    assert main(["diagnose", str(tmp_path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    for collective in report["collectives"]:
        assert collective["bus_bandwidth_gbytes_per_s"] <= collective["link_gbytes_per_s"]
    first = report["diagnosis"]["causes"][0]
    if kind == "none":
        assert first["cause"] == "compute"
        return
    assert (first["cause"], first["ranks"]) == ("slow_link", [])
    assert all(first[name] for name in ("place", "lever", "measure"))
    lost_s = step_seconds(SHARDED, fault) - step_seconds(SHARDED)
    assert first["seconds"] == pytest.approx(lost_s, rel=0.35)
    assert first["seconds_low"] <= first["seconds"] <= first["seconds_high"]
