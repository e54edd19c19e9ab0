"""The plans that a search timed as bytes: kept with a session, and read by the page that explores them.

gzip of: the length of a JSON header (uint32, little-endian), the header padded with spaces to a multiple of
four, then one array of four-byte numbers per column, little-endian, in the order of the header. Plans are
sorted by time, so that neighbours are alike and compress well.
"""

import gzip
import json
import struct

import numpy as np

from tools.scenario import SEARCHED_FIELDS
from tools.scenario.columns import CHOICES
from tools.search.ranked import Ranked

TIME, MEMORY = "step_time_s", "memory_bytes"
COMPRESSION = 5


def pack(plans: Ranked) -> bytes:
    count = len(plans.step_time_s)
    figures = {TIME: plans.step_time_s, MEMORY: plans.memory_bytes}
    columns = [{"name": name, "type": "float32", "choices": None} for name in figures] + [
        {"name": name, "type": "int32", "choices": CHOICES.get(name)} for name in SEARCHED_FIELDS
    ]
    header = json.dumps({"count": count, "columns": columns}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 4)
    arrays = [column.astype("<f4").tobytes() for column in figures.values()]
    if count:
        arrays += [plans.plans[name].astype("<i4").tobytes() for name in SEARCHED_FIELDS]
    body = b"".join([struct.pack("<I", len(header)), header, *arrays])
    return gzip.compress(body, COMPRESSION, mtime=0)


def unpack(packed: bytes) -> Ranked:
    """Times and memory in the precision that they were packed with."""
    body = gzip.decompress(packed)
    (length,) = struct.unpack_from("<I", body)
    header = json.loads(body[4 : 4 + length])
    count, start = header["count"], 4 + length
    columns = {}
    for column in header["columns"] if count else ():
        kind = "<f4" if column["type"] == "float32" else "<i4"
        columns[column["name"]] = np.frombuffer(body, kind, count, start)
        start += 4 * count
    empty = np.zeros(0, np.float32)
    return Ranked(
        {name: columns[name].astype(np.int64) for name in SEARCHED_FIELDS if name in columns},
        columns.get(TIME, empty).astype(np.float64),
        columns.get(MEMORY, empty).astype(np.float64),
    )
