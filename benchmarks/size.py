"""What a kept session takes of the disk, by table: SQLite's pages after sessions through a real server.

    python -m benchmarks.size [--sessions N]

Llama 3.1 70B on 64 H100 by the expert rules. What an empty installation takes is left out.
"""

import argparse
import json
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from asap_client.client import Client
from benchmarks.service_processes import REPO
from tests.integration.service.api_process import api_process

SCENARIO = json.loads((REPO / "examples/llama-3.1-70b-64xh100.json").read_text())
DATABASES = ("asap.db", "checkpoints.db")


def pages(file: Path) -> dict[str, int]:
    """Bytes by table; indices count to theirs."""
    with closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        rows = database.execute(
            "SELECT coalesce(m.tbl_name, s.name), sum(s.pgsize) FROM dbstat s "
            "LEFT JOIN sqlite_master m ON m.name = s.name GROUP BY 1"
        )
        return dict(rows.fetchall())


def measure(folder: Path, sessions: int) -> dict[str, dict[str, int]]:
    with api_process(folder) as server:
        with Client(server.address) as client:
            for id in [client.submit(SCENARIO).id for _ in range(sessions)]:
                client.wait(id, timeout_s=600)
        server.stop()
    return {name: pages(folder / "data" / name) for name in DATABASES}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sessions", type=int, default=20)
    sessions = parser.parse_args().sessions
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as many:
        before, after = measure(Path(one), 1), measure(Path(many), 1 + sessions)
    print("| database | table | kB per session |\n| --- | --- | --- |")
    for name in DATABASES:
        grown = {table: size - before[name].get(table, 0) for table, size in after[name].items()}
        for table, size in sorted(grown.items(), key=lambda item: -item[1]):
            if size > 0:
                print(f"| {name} | {table} | {size / sessions / 1e3:.1f} |")
        print(f"| {name} | all | {sum(grown.values()) / sessions / 1e3:.1f} |")


if __name__ == "__main__":
    main()
