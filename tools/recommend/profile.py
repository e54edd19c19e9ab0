"""What a recommendation needs of a folder of traces: the measured diagnosis and the totals behind it."""

from pathlib import Path
from statistics import fmean
from typing import Any

from tools.errors import InputError
from tools.trace.rank_profile import RankProfile
from tools.trace.report import analyse_folder

MOST_COLLECTIVES = 8
MOST_KERNELS = 10


def read_profile(folder: str) -> dict[str, Any]:
    """Analyses the traces; a folder without a readable one is the caller's mistake."""
    try:
        analysed = analyse_folder(Path(folder))
    except InputError as error:
        raise InputError("traces", error.given, error.allowed) from None
    data = analysed.data
    if data["diagnosis"] is None:
        first = data["unreadable"][0]
        raise InputError("traces", first["file"], f"no trace of the folder can be read; {first['reason']}")
    return {
        "step_time_s": _step_time_s(analysed.profile.ranks),
        "diagnosis": data["diagnosis"],
        "total": data["total"],
        "ranks": len(data["ranks"]),
        "unreadable": data["unreadable"],
        "stragglers": data["stragglers"],
        "collectives": data["collectives"][:MOST_COLLECTIVES],
        "top_ops": data["ranks"][0]["top_ops"][:MOST_KERNELS],
    }


def _step_time_s(ranks: list[RankProfile]) -> float | None:
    """The mean over ranks and steady steps; None where no steps are marked."""
    means_ns = [
        fmean(step.breakdown.total_ns for step in one.steady_steps) for one in ranks if one.steady_steps
    ]
    return fmean(means_ns) * 1e-9 if means_ns else None
