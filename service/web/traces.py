"""What figures need of a folder of traces, as plain data that is kept with the analysis of an upload."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tools.trace.collectives import AlignedCollectives, align
from tools.trace.folder import FolderProfile
from tools.trace.rank_profile import RankProfile
from tools.trace.report import describe_point
from tools.trace.stragglers import aligned_starts_ns

DRAWING = "drawing"
"""The key beside the parts of `asap diagnose --json`."""
MOST_RANKS = 64
MOST_POINTS = 200
MOST_COLUMNS = 120

Data = Mapping[str, Any]


def drawing_of(profile: FolderProfile) -> dict[str, Any]:
    """Strips of every rank, the longest operations of all ranks, and who came late to collectives."""
    ranks = profile.ranks[:MOST_RANKS]
    points = sorted(
        (point for one in profile.ranks for point in one.roofline), key=lambda point: -point.time_ns
    )
    return {
        "strips": [_strip(one) for one in ranks if one.timeline is not None],
        "points": [describe_point(point) for point in points[:MOST_POINTS]],
        "lateness": lateness([one for one in align(ranks) if one.is_synchronising]),
    }


def _strip(rank: RankProfile) -> dict[str, Any]:
    line = rank.timeline
    if line is None:
        raise ValueError("a rank without a timeline has no strip")
    return {
        "rank": rank.rank,
        "start_ms": line.start_ns / 1e6,
        "end_ms": line.end_ns / 1e6,
        "compute": line.compute,
        "exposed_communication": line.exposed_communication,
        "memory": line.memory,
    }


def lateness(aligned: Sequence[AlignedCollectives]) -> dict[str, Any] | None:
    """How long after the first each rank came, in the order of time; None where nothing was synchronised."""
    if not aligned:
        return None
    ranks = sorted({rank for one in aligned for rank in one.ranks})
    columns, order = [], []
    for one in aligned:
        starts_ns = aligned_starts_ns(one)
        late_us = (starts_ns - starts_ns.min(axis=0)) / 1000
        block = np.full((len(ranks), late_us.shape[1]), np.nan)
        block[[ranks.index(rank) for rank in one.ranks]] = late_us
        columns.append(block)
        order.append(starts_ns.min(axis=0))
    whole = np.concatenate(columns, axis=1)[:, np.argsort(np.concatenate(order), kind="stable")]
    return {"ranks": ranks, "late_us": [[_rounded(value) for value in row] for row in _narrowed(whole)]}


def _narrowed(late_us: np.ndarray) -> np.ndarray:
    """At most so many columns as can be told apart: the mean of those that share one."""
    parts = np.array_split(late_us, min(MOST_COLUMNS, late_us.shape[1]), axis=1)
    sums = np.stack([np.nansum(part, axis=1) for part in parts], axis=1)
    counts = np.stack([np.sum(~np.isnan(part), axis=1) for part in parts], axis=1)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _rounded(value: float) -> float | None:
    return None if np.isnan(value) else round(float(value), 2)
