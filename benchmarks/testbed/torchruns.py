"""One torchrun per host, waited for together; if one fails or a signal asks us to end, all end."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.testbed.hosts import INTERFACE, Host, hosts

REPO = Path(__file__).resolve().parents[2]
PORT = 29500
"""Hosts have networks of their own: nobody else listens there."""
_POLL_S = 0.2


def run_on_hosts(program: Sequence[str], count: int, ranks: int, mbit: float, pins: bool = False) -> int:
    """`program` is a module and its arguments; the first status that is not 0 counts."""
    with hosts(count, mbit, pins) as cluster:
        jobs = [
            subprocess.Popen(host.command(_torchrun(program, cluster, number, ranks)), cwd=REPO)
            for number, host in enumerate(cluster)
        ]
        try:
            return _wait(jobs)
        finally:
            for job in jobs:
                job.terminate()
            for job in jobs:
                job.wait()


def _wait(jobs: list["subprocess.Popen[bytes]"]) -> int:
    """A host whose partner has failed would wait for it until gloo gives up."""
    while any(job.poll() is None for job in jobs):
        failed = [job.returncode for job in jobs if job.returncode]
        if failed:
            return int(failed[0])
        try:
            next(job for job in jobs if job.poll() is None).wait(timeout=_POLL_S)
        except (StopIteration, subprocess.TimeoutExpired):
            continue
    return next((job.returncode for job in jobs if job.returncode), 0)


def _torchrun(program: Sequence[str], cluster: list[Host], number: int, ranks: int) -> list[str]:
    return [
        *("env", f"GLOO_SOCKET_IFNAME={INTERFACE}", "OMP_NUM_THREADS=1"),
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--nnodes", str(len(cluster)), "--nproc-per-node", str(ranks // len(cluster))),
        *("--node-rank", str(number), "--master-addr", cluster[0].address, "--master-port", str(PORT)),
        *("-m", *program),
    ]
