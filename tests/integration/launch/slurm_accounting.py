"""slurmdbd on a MariaDB of its own, so that sacct answers: both live in the cluster's folder."""

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.integration.launch.slurm_cluster import (
    SEARCH_PATH,
    Daemons,
    SlurmCluster,
    free_ports,
    running_cluster,
    wait_for,
)

PROGRAMS = ("slurmdbd", "mariadbd", "mariadb-install-db", "mariadb", "sacctmgr")
CONFIGURATION = """\
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=root
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database_port}
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
"""
ACCOUNTING = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port}
AccountingStoragePass={folder}/munge.socket
AccountingStoreFlags=job_comment
"""
USER = "CREATE USER slurm@'127.0.0.1' IDENTIFIED BY 'slurm'; GRANT ALL ON *.* TO slurm@'127.0.0.1';"


def missing_accounting() -> str | None:
    absent = [name for name in PROGRAMS if not shutil.which(name, path=SEARCH_PATH)]
    return f"{', '.join(absent)} not installed: make test-slurm installs them" if absent else None


@contextmanager
def running_accounted_cluster(folder: Path, min_job_age_s: int) -> Iterator[SlurmCluster]:
    """A cluster that forgets jobs fast, and whose database does not."""
    port, database_port = free_ports(2)
    configuration = folder / "slurmdbd.conf"
    configuration.write_text(CONFIGURATION.format(folder=folder, port=port, database_port=database_port))
    configuration.chmod(0o600)
    words = ["mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={folder}/database"]
    subprocess.run(words, env={"PATH": SEARCH_PATH}, capture_output=True, check=True)

    def start_database(daemons: Daemons) -> None:
        daemons.start(_mariadbd(folder, database_port), lambda: _answers(folder))
        daemons.start(["slurmdbd", "-D"], lambda: _accepts(port))

    accounting = ACCOUNTING.format(folder=folder, port=port)
    with running_cluster(
        folder, min_job_age_s=min_job_age_s, accounting=accounting, start_first=start_database
    ) as cluster:
        wait_for(lambda: _knows_cluster(cluster), "slurmdbd does not know the cluster")
        yield cluster


def _mariadbd(folder: Path, port: int) -> list[str]:
    files = [f"--{name}={folder}/database{end}" for name, end in
             (("datadir", ""), ("socket", ".socket"), ("pid-file", ".pid"))]  # fmt: skip
    return ["mariadbd", "--no-defaults", "--user=root", *files, "--bind-address=127.0.0.1", f"--port={port}"]


def _answers(folder: Path) -> bool:
    words = ["mariadb", "--no-defaults", f"--socket={folder}/database.socket", "--user=root", "-e", USER]
    environment = {"PATH": SEARCH_PATH}
    result = subprocess.run(words, env=environment, capture_output=True, check=False)
    return result.returncode == 0


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True


def _knows_cluster(cluster: SlurmCluster) -> bool:
    """slurmctld registers itself a moment after its start; jobs before that are not accounted."""
    return "asap" in cluster.call(
        "sacctmgr", "--noheader", "--parsable2", "list", "clusters", "format=cluster"
    )
