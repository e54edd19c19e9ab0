"""Two folders of traces before and after a change: each term per rank and step, and kernels that moved."""

from collections import defaultdict
from dataclasses import fields
from typing import Any

import numpy as np

from tools.trace.breakdown import Breakdown, add_breakdowns
from tools.trace.diagnosis import steady_breakdown
from tools.trace.rank_profile import RankProfile

_TOP = 10


def compare(before: list[RankProfile], after: list[RankProfile]) -> dict[str, Any]:
    """Means over ranks and steady steps, or over ranks where not all mark steps; time won is negative."""
    by_step = _has_steps(before) and _has_steps(after)
    terms_before, terms_after = _mean(before, by_step), _mean(after, by_step)
    return {
        "per": "rank and step" if by_step else "rank",
        "speedup": _ratio(terms_before["total_us"], terms_after["total_us"]),
        "terms": [
            _change(name, terms_before[name], terms_after[name])
            for name in terms_before
            if name != "overlap_ratio"
        ],
        "overlap_ratio": {"before": terms_before["overlap_ratio"], "after": terms_after["overlap_ratio"]},
        "kernels": _compare_kernels(before, after, by_step),
    }


def _has_steps(profiles: list[RankProfile]) -> bool:
    return bool(profiles) and all(profile.steady_steps for profile in profiles)


def _mean(profiles: list[RankProfile], by_step: bool) -> dict[str, Any]:
    """Of one rank's steady step, or of its whole trace."""
    parts = [steady_breakdown(profile) if by_step else profile.breakdown for profile in profiles]
    count = sum(len(profile.steady_steps) if by_step else 1 for profile in profiles) or 1
    summed = add_breakdowns(parts)
    mean = Breakdown(**{one.name: round(getattr(summed, one.name) / count) for one in fields(summed)})
    return mean.as_microseconds()


def _change(name: str, before_us: float, after_us: float) -> dict[str, Any]:
    return {
        "term": name.removesuffix("_us"),
        "before_us": before_us,
        "after_us": after_us,
        "change_us": after_us - before_us,
        "ratio": _ratio(after_us, before_us),
    }


def _ratio(value: float, base: float) -> float | None:
    return value / base if base else None


def _compare_kernels(
    before: list[RankProfile], after: list[RankProfile], by_step: bool
) -> list[dict[str, Any]]:
    """The ten names of either side's longest kernels whose time changed most."""
    times_before, times_after = _kernel_times_us(before, by_step), _kernel_times_us(after, by_step)
    names = sorted(times_before.keys() | times_after.keys())
    changes = np.array([times_after.get(name, 0.0) - times_before.get(name, 0.0) for name in names])
    chosen = np.argsort(-np.abs(changes), kind="stable")[:_TOP]
    return [
        {
            "name": names[index],
            "before_us": times_before.get(names[index]),
            "after_us": times_after.get(names[index]),
            "change_us": float(changes[index]),
        }
        for index in chosen
    ]


def _kernel_times_us(profiles: list[RankProfile], by_step: bool) -> dict[str, float]:
    """Per rank, and per marked step with warm-up included, because kernels are not kept by step."""
    count = sum(len(profile.steps) if by_step else 1 for profile in profiles) or 1
    times: dict[str, float] = defaultdict(float)
    for profile in profiles:
        for kernel in profile.top_kernels:
            times[kernel.name] += kernel.time_ns / 1000 / count
    return dict(times)
