"""What a recommendation needs of a folder of traces: the measured diagnosis and the totals behind it."""

from pathlib import Path
from typing import Any

from tools.errors import InputError
from tools.trace.report import analyse_folder

MOST_COLLECTIVES = 8
MOST_KERNELS = 10


def read_profile(folder: str) -> dict[str, Any]:
    """Analyses the traces; a folder without a readable one is the caller's mistake."""
    try:
        data = analyse_folder(Path(folder)).data
    except InputError as error:
        raise InputError("traces", error.given, error.allowed) from None
    if data["diagnosis"] is None:
        raise InputError("traces", folder, "no trace in that folder could be read; see asap diagnose")
    return {
        "diagnosis": data["diagnosis"],
        "total": data["total"],
        "ranks": len(data["ranks"]),
        "unreadable": data["unreadable"],
        "stragglers": data["stragglers"],
        "collectives": data["collectives"][:MOST_COLLECTIVES],
        "top_ops": data["ranks"][0]["top_ops"][:MOST_KERNELS],
    }
