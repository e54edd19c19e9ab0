"""A real Slurm of four nodes on one machine, brought up in about a second and taken down without a trace.

    python -m tests.integration.launch.slurm_cluster FOLDER      runs until interrupted, prints SLURM_CONF

Everything lives in the folder: configuration, keys, spools, logs. munged runs with a key and a socket of its
own, node names exist only in mount namespaces of the daemons, and each slurmd has a host name of its own.
Needs root, for the namespaces and because slurmd starts jobs as their user.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

START_S, STOP_S = 60.0, 15.0
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "scontrol", "munged", "unshare")
NODES = 4
DEVICES_PER_NODE = 4
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

CONFIGURATION = """\
ClusterName=asap
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
JobAcctGatherParams=OverMemoryKill
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerNode=2000
MpiDefault=none
ReturnToService=2
KillWait=2
MinJobAge={min_job_age_s}
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
GresTypes=gpu
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
{accounting}
NodeName=n[1-{nodes}] NodeAddr=127.0.0.1 NodeHostname={host} Port={node_ports} CPUs=8 RealMemory=8000 \
Gres=gpu:{devices}
PartitionName=main Nodes=ALL Default=YES MaxTime=60 State=UP
"""
WITHOUT_ACCOUNTING = "AccountingStorageType=accounting_storage/none"


def missing_part() -> str | None:
    """Why there can be no cluster here, or None."""
    absent = [name for name in PROGRAMS if not shutil.which(name, path=SEARCH_PATH)]
    if absent:
        return f"{', '.join(absent)} not installed: make test-slurm installs Slurm"
    return None if os.geteuid() == 0 else "a Slurm cluster on one machine needs root"


class Daemons(ExitStack):
    """In the foreground, started one after the other and ended in the opposite order."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        super().__init__()
        self._folder, self._environment = folder, dict(environment)
        self._output = folder / "daemons.txt"
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, words: Sequence[str], ready: Callable[[], bool] | None = None) -> None:
        with self._output.open("ab") as output:
            daemon = subprocess.Popen(
                words,
                env=self._environment,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self._running.append(daemon)
        self.callback(_end_daemon, daemon)
        if ready:
            self.until(ready)

    def until(self, fact: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + START_S
        while not fact():
            dead = [daemon.args for daemon in self._running if daemon.poll() is not None]
            if dead or time.monotonic() > deadline_s:
                output = self._output.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"the daemons do not come up; ended: {dead}; output: {output}")
            time.sleep(0.1)


def _end_daemon(daemon: subprocess.Popen[bytes]) -> None:
    daemon.terminate()
    try:
        daemon.wait(timeout=STOP_S)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


class SlurmCluster:
    """What a test needs of it: the environment of its commands, and a way to break a node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {"PATH": SEARCH_PATH, "SLURM_CONF": str(folder / "slurm.conf"), "LC_ALL": "C"}

    def call(self, *words: str) -> str:
        result = subprocess.run(words, env=self.environment, capture_output=True, text=True, check=False)
        if result.returncode:
            raise RuntimeError(f"{' '.join(words)}: {result.stderr.strip()}")
        return result.stdout

    def jobs_named(self, key: str) -> list[str]:
        """Ids of all jobs of this key, ended ones too."""
        words = ["squeue", "--noheader", "--states=all", f"--name=asap-{key}", "--format=%i"]
        return self.call(*words).split()

    def set_node(self, name: str, state: str) -> None:
        self.call("scontrol", "update", f"NodeName={name}", f"State={state}", "Reason=test")

    def resume_all(self) -> None:
        """A node may come back by itself (ReturnToService), and then refuses to be resumed."""
        wait_for(self._resumed, f"nodes do not come back: {self.call('sinfo')}")

    def _resumed(self) -> bool:
        for number in range(1, NODES + 1):
            with suppress(RuntimeError):
                self.set_node(f"n{number}", "resume")
        return self.idle_nodes() == NODES

    def idle_nodes(self) -> int:
        states = self.call("sinfo", "--noheader", "--Node", "--format=%T").split()
        return states.count("idle")


@contextmanager
def running_cluster(
    folder: Path,
    *,
    min_job_age_s: int = 86_400,
    accounting: str = WITHOUT_ACCOUNTING,
    start_first: Callable[[Daemons], None] | None = None,
) -> Iterator[SlurmCluster]:
    """Up when all nodes are idle; every daemon and every job is gone afterwards."""
    _configure(folder, min_job_age_s, accounting)
    cluster = SlurmCluster(folder)
    with Daemons(folder, cluster.environment) as daemons:
        daemons.start(_munged(folder), (folder / "munge.socket").exists)
        if start_first:
            start_first(daemons)
        daemons.start(_in_namespace(folder, "", ["slurmctld", "-D", "-c"]))
        for number in range(1, NODES + 1):
            name = f"n{number}"
            daemons.start(_in_namespace(folder, name, ["slurmd", "-D", "-c", "-N", name]))
        daemons.until(lambda: _is_up(cluster))
        yield cluster
        _end_jobs(cluster)


def _configure(folder: Path, min_job_age_s: int, accounting: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    (folder / "state").mkdir(exist_ok=True)
    host, ports = socket.gethostname(), free_ports(NODES + 1)
    (folder / "slurm.conf").write_text(
        CONFIGURATION.format(
            host=host,
            ports=ports,
            folder=folder,
            nodes=NODES,
            node_ports=f"[{','.join(map(str, ports[1:]))}]",
            devices=DEVICES_PER_NODE,
            min_job_age_s=min_job_age_s,
            accounting=accounting,
        )
    )
    _write_devices(folder)
    names = " ".join(f"n{number}" for number in range(1, NODES + 1))
    (folder / "hosts").write_text(f"127.0.0.1 localhost {host} {names}\n")
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o600)


def _write_devices(folder: Path) -> None:
    """Plain files stand for devices; a bare count would leave the nodes invalid."""
    files = [folder / f"device{number}" for number in range(DEVICES_PER_NODE)]
    for file in files:
        file.touch()
    lines = [f"NodeName=n[1-{NODES}] Name=gpu File={file}\n" for file in files]
    (folder / "gres.conf").write_text("".join(lines))


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = sorted(item.getsockname()[1] for item in sockets)
    for item in sockets:
        item.close()
    return ports


def _munged(folder: Path) -> list[str]:
    names = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    files = [f"--{option}={folder}/munge.{suffix}" for option, suffix in names.items()]
    # Forced, because folders of tests are closed to other users.
    return ["munged", "--foreground", "--force", *files]


def _in_namespace(folder: Path, host_name: str, daemon: Sequence[str]) -> list[str]:
    """Own names of hosts, and for a node its own name."""
    script = 'mount --bind "$1/hosts" /etc/hosts && { [ -z "$2" ] || hostname "$2"; } && shift 2 && exec "$@"'
    return ["unshare", "--mount", "--uts", "sh", "-c", script, "sh", str(folder), host_name, *daemon]


def _is_up(cluster: SlurmCluster) -> bool:
    try:
        return cluster.idle_nodes() == NODES
    except RuntimeError:
        return False


def _end_jobs(cluster: SlurmCluster) -> None:
    cluster.call("scancel", "--me", "--full", "--signal=KILL")
    cluster.call("scancel", "--me")
    wait_for(lambda: not cluster.call("squeue", "--noheader"), "jobs do not end")


def wait_for(fact: Callable[[], bool], otherwise: str) -> None:
    deadline_s = time.monotonic() + START_S
    while not fact():
        if time.monotonic() > deadline_s:
            raise RuntimeError(otherwise)
        time.sleep(0.1)


if __name__ == "__main__":
    reason = missing_part()
    if reason:
        sys.exit(reason)
    with running_cluster(Path(sys.argv[1]).resolve()) as up:
        sys.stdout.write(f"export SLURM_CONF={up.environment['SLURM_CONF']}\n")
        sys.stdout.flush()
        with suppress(KeyboardInterrupt):
            signal.pause()
