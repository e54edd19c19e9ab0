"""Hosts as network and host-name namespaces, joined by a bridge over links of a set rate; and one torchrun
per host, waited for together.

Everything hangs on processes: the bridge lives in this process' own network namespace, each host in that of
a process that waits for the end of its input. When they are gone, by whatever way, the kernel takes the
links, the bridge and the namespaces away. Needs root, `ip` and `tc` (Debian: iproute2).
"""

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

REPO = Path(__file__).resolve().parents[2]
NETWORK = "10.77.0"
INTERFACE = "eth0"
BURST_KBYTES = 70
"""Just more than a segment of 64 KiB: what an idle link may send at once is not held back."""
_NEW_HOST_NAME, _NEW_NETWORK = 0x04000000, 0x40000000  # linux/sched.h
_LIBC = ctypes.CDLL(None, use_errno=True)


class TestbedError(Exception):
    """The machine cannot hold the testbed; the message says what is missing."""


NOBODY: Mapping[int, float] = MappingProxyType({})


@dataclass(frozen=True)
class Host:
    name: str
    address: str
    pid: int
    """The process that holds the host's namespaces."""
    core: int | None = None
    """The one core that its processes share; None: all of the machine's."""

    def command(self, words: Sequence[str]) -> list[str]:
        """The words to run on this host."""
        pinned = [] if self.core is None else ["taskset", "--cpu-list", str(self.core)]
        return [*pinned, "nsenter", "--target", str(self.pid), "--net", "--uts", *words]


@contextmanager
def hosts(
    count: int, mbit: float, pins: bool = False, slow: Mapping[int, float] = NOBODY
) -> Iterator[list[Host]]:
    """`count` hosts; what each sends to the others is held to `mbit`, or to its figure in `slow`; with `pins`
    each has a core of its own. For the life of a process, once."""
    _check_machine()
    _unshare(_NEW_NETWORK)
    _run("ip link add bridge type bridge")
    _run("ip link set bridge up")
    with ExitStack() as stack:
        joined = [
            _join(stack.enter_context(_holder()), number, slow.get(number, mbit))
            for number in range(1, count + 1)
        ]
        cores = sorted(os.sched_getaffinity(0))
        yield [replace(host, core=cores[i % len(cores)]) if pins else host for i, host in enumerate(joined)]


def _check_machine() -> None:
    if os.geteuid() != 0:
        raise TestbedError("the testbed makes network namespaces and shapes links: run it as root")
    missing = [name for name in ("ip", "tc", "nsenter", "hostname") if shutil.which(name) is None]
    if missing:
        raise TestbedError(f"{', '.join(missing)} not found: install iproute2, util-linux and hostname")


def _unshare(flags: int) -> None:
    if _LIBC.unshare(flags):
        reason = os.strerror(ctypes.get_errno())
        raise TestbedError(f"the kernel gives no namespace of its own: {reason}")


@contextmanager
def _holder() -> Iterator[int]:
    """A process in namespaces of its own; it ends with its input, at the latest when this process ends."""
    process = subprocess.Popen(
        ["cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        preexec_fn=lambda: _unshare(_NEW_NETWORK | _NEW_HOST_NAME),
    )
    try:
        yield process.pid
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


def _join(pid: int, number: int, mbit: float) -> Host:
    """Gives a new host its name, its link to the bridge and its rate."""
    host = Host(f"host{number}", f"{NETWORK}.{number}", pid)
    _run(f"ip link add port{number} type veth peer name {INTERFACE} netns {pid}")
    _run(f"ip link set port{number} master bridge up")
    for words in (
        f"hostname {host.name}",
        "ip link set lo up",
        f"ip address add {host.address}/24 dev {INTERFACE}",
        f"ip link set {INTERFACE} up",
        f"tc qdisc add dev {INTERFACE} root tbf rate {mbit:g}mbit burst {BURST_KBYTES}kb latency 400ms",
    ):
        _run(words, host)
    return host


def _run(words: str, host: Host | None = None) -> None:
    command = words.split()
    done = subprocess.run(host.command(command) if host else command, capture_output=True, text=True)
    if done.returncode:
        raise TestbedError(f"{words!r} failed: {done.stderr.strip()}")


PORT = 29500
"""Hosts have networks of their own: nobody else listens there."""
_POLL_S = 0.2


def run_on_hosts(
    program: Sequence[str],
    count: int,
    ranks: int,
    mbit: float,
    pins: bool = False,
    slow: Mapping[int, float] = NOBODY,
) -> int:
    """`program` is a module and its arguments; the first status that is not 0 counts."""
    with hosts(count, mbit, pins, slow) as cluster:
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
    while None in [job.poll() for job in jobs]:  # each is asked: only that notes its status
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
