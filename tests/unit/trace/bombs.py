"""Small files that would cost their reader minutes or gigabytes."""

import gzip
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from tests.unit.trace.builders import kernel

MIB = 1 << 20
_ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"
_TABLES = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
INSERT INTO StringIds VALUES (1, 'gemm');
"""
_KERNELS = (
    "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, deviceId INT, streamId INT,"
    " correlationId INT, demangledName INT)"
)
_COLUMNS = "x AS start, x + 1 AS end, 0 AS deviceId, 7 AS streamId, x AS correlationId, 1 AS demangledName"
_INSERT = "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL"


def _sqlite(*statements: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = folder / "rank0.sqlite"
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.executescript(";".join(statements))
        return path

    return make


def _json(content: Callable[[], bytes | str], name: str = "rank0.json") -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path, made = folder / name, content()
        packed = made.encode() if isinstance(made, str) else made
        path.write_bytes(gzip.compress(packed, 1) if name.endswith(".gz") else packed)
        return path

    return make


def _trace(*events: str, head: str = "") -> str:
    return "{" + head + '"traceEvents": [' + ",".join(events) + "]}"


def _kernels(
    count: int, name: str = "k", start: str = "{0}", more: str = '"dur":1,"tid":7,"args":{{}}'
) -> str:
    """Each with its number where the texts have `{0}`."""
    event = f'{{{{"ph":"X","cat":"kernel","name":"{name}","ts":{start},{more}}}}}'
    return _trace(*(event.format(number) for number in range(count)))


KERNEL = json.dumps(kernel("gemm", 0, 5))
BOMBS: dict[str, Callable[[Path], Path]] = {
    "endless view": _sqlite(
        _TABLES, f"CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS {_ENDLESS} SELECT {_COLUMNS} FROM n WHERE x < 0"
    ),
    "view of endless rows": _sqlite(
        _TABLES, f"CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS {_ENDLESS} SELECT {_COLUMNS} FROM n"
    ),
    "view of endless texts": _sqlite(
        f"CREATE VIEW StringIds AS {_ENDLESS} SELECT x AS id, hex(zeroblob(1000000)) AS value FROM n",
        _KERNELS,
        f"{_INSERT} VALUES (0, 5, 0, 7, 1, 1)",
    ),
    "endless runtime view": _sqlite(
        _TABLES,
        _KERNELS,
        f"{_INSERT} VALUES (0, 5, 0, 7, 1, 1)",
        f"CREATE VIEW CUPTI_ACTIVITY_KIND_RUNTIME AS {_ENDLESS} SELECT x AS start, x AS end, 1 AS globalTid,"
        " x AS correlationId, 1 AS nameId FROM n",
    ),
    "computed column": _sqlite(
        _TABLES,
        _KERNELS.replace("end INT", "end INT AS (length(hex(zeroblob(4000000))))"),
        f"{_INSERT} (start, deviceId, streamId, correlationId, demangledName)"
        f" {_ENDLESS} SELECT x, 0, 7, x, 1 FROM n LIMIT 300",
    ),
    "huge text": _sqlite(
        "CREATE TABLE StringIds (id INT, value TEXT)",
        "INSERT INTO StringIds VALUES (1, hex(zeroblob(8000000)))",
        _KERNELS,
        f"{_INSERT} {_ENDLESS} SELECT x, x, 0, 7, x, 1 FROM n LIMIT 2000",
    ),
    "crossed tables": _sqlite(
        "CREATE TABLE StringIds (id INT, value TEXT)",
        f"INSERT INTO StringIds {_ENDLESS} SELECT 1, 'gemm' FROM n LIMIT 3000",
        _KERNELS,
        f"{_INSERT} {_ENDLESS} SELECT x, x, 0, 7, x, 1 FROM n LIMIT 20000",
    ),
    "virtual table": _sqlite(
        _TABLES, "CREATE VIRTUAL TABLE CUPTI_ACTIVITY_KIND_KERNEL USING fts5(start, end, deviceId)"
    ),
    "device ids": _sqlite(
        _TABLES, _KERNELS, f"{_INSERT} {_ENDLESS} SELECT x, x, x, 7, x, 1 FROM n LIMIT 200000"
    ),
    "huge integers": _sqlite(
        _TABLES, _KERNELS, f"{_INSERT} VALUES (-9223372036854775807, 9223372036854775807, 0, 7, 1, 1)"
    ),
    "broken pages": lambda folder: _broken_pages(folder),
    "gzip of zeros": _json(lambda: bytes(256 * MIB), "rank0.json.gz"),
    "gzip of spaces in the head": _json(lambda: b"{" + b" " * 200 * MIB + b"}", "rank0.json.gz"),
    "gzip of one event": _json(lambda: _trace(*[KERNEL] * 1_500_000), "rank0.json.gz"),
    "gzip in gzip": _json(lambda: gzip.compress(bytes(64 * MIB)), "rank0.json.gz"),
    # every kernel has a name of its own, all of which a reader must keep
    "many names": _json(lambda: _kernels(400_000, "{0:0>400}"), "rank0.json.gz"),
    "long names": _json(lambda: _kernels(60, "{0:0>4000000}"), "rank0.json.gz"),
    "deep arrays": _json(lambda: b"[" * 2_000_000),
    "deep objects": _json(lambda: b'{"a":' * 2_000_000),
    "deep arguments": _json(
        lambda: _kernels(50, more='"dur":1,"args":' + '{{"a":' * 9000 + "0" + "}}" * 9000)
    ),
    "one endless string": _json(lambda: b'{"traceEvents": [{"name": "' + b"a" * 64 * MIB),
    "backslashes": _json(lambda: b'{"traceEvents": [{"name": "' + b"\\" * 64 * MIB + b'"}]}'),
    "quotes": _json(lambda: b'{"traceEvents": [' + b'"' * 32 * MIB),
    "huge numbers": _json(lambda: _kernels(10, start="1e308", more='"dur":1e308,"tid":7,"args":{{}}')),
    "long numbers": _json(lambda: _kernels(10, start="9" * 1_000_000)),
    "far apart": _json(lambda: _trace(KERNEL, KERNEL.replace('"ts": 0', '"ts": 9007199254740991'))),
    "huge world": _json(
        lambda: _trace(
            KERNEL,
            head='"distributedInfo": {"rank": 0, "world_size": 1000000000, "pg_config": [{"ranks": ['
            + ",".join(map(str, range(2_000_000)))
            + "]}]}, ",
        )
    ),
    "many steps": _json(
        lambda: _trace(
            KERNEL,
            *(
                f'{{"ph":"X","cat":"user_annotation","name":"ProfilerStep#{n}","ts":{n},"dur":1,"tid":1}}'
                for n in range(300_000)
            ),
        )
    ),
    "many streams": _json(lambda: _kernels(200_000, more='"dur":9e6,"tid":{0},"args":{{}}')),
    "deep summary": _json(lambda: b'{"format": "asap-rank-profile-1", "steps": ' + b"[" * 3_000_000),
}


def _broken_pages(folder: Path) -> Path:
    """A B-tree whose pages point at each other."""
    path = BOMBS["device ids"](folder)
    content = bytearray(path.read_bytes())
    for page in range(4096, len(content) - 4096, 4096):
        content[page : page + 12] = content[4096 * 2 : 4096 * 2 + 12]
    path.write_bytes(content)
    return path
