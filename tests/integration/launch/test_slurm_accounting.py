"""A job that the controller has forgotten is found in the accounting, with its real exit code."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.launch.conftest import slurm_run
from tests.integration.launch.slurm_accounting import missing_accounting, running_accounted_cluster
from tests.integration.launch.slurm_cluster import SlurmCluster, missing_part
from tests.integration.launch.waiting import until
from tools.launch.status import FailureCause, JobState

pytestmark = [pytest.mark.real, pytest.mark.slow]
FORGETS_S = 2


@pytest.fixture(scope="module")
def accounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    reason = missing_part() or missing_accounting()
    if reason:
        pytest.skip(reason)
    with running_accounted_cluster(tmp_path_factory.mktemp("slurmdb"), FORGETS_S) as cluster:
        yield cluster


def is_forgotten(cluster: SlurmCluster, job_id: str) -> bool:
    try:
        cluster.call("scontrol", "show", "job", job_id)
    except RuntimeError as error:
        return "Invalid job id" in str(error)
    return False


def test_sacct_finds_the_key_and_its_exit_code_when_scontrol_has_forgotten(
    accounted: SlurmCluster, tmp_path: Path
) -> None:
    run = slurm_run(accounted, tmp_path / "jobs", "sh", "-c", "exit 5", limits={"wall_s": 60})
    handle = run.submit()
    until(lambda: is_forgotten(accounted, handle.reference))
    for record in ("slurm.json", "claim", "exit_status"):
        (run.folder.path / record).unlink()
    assert run.submit() == handle
    status = run.launcher.status(handle)
    assert (status.state, status.cause, status.exit_status) == (JobState.FAILED, FailureCause.EXIT, 5)
    assert status.source == "sacct"
    assert status.started_unix_s is not None
