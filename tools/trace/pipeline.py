"""Pipeline parallelism as far as the traces show it: bubble and imbalance of the stages.

Stages are visible when ranks exchange activations by send and receive. A stage without input sits inside
a receive, so exposed point-to-point time is bubble plus transfer; the transfer alone is not told apart
here. With `torch.distributed.pipelining` and gloo the waiting is on the host and shows as idle instead.
"""

from typing import Any

import numpy as np

from tools.trace.rank_profile import RankProfile

_POINT_TO_POINT = "send_recv"


def analyse_pipeline(profiles: list[RankProfile]) -> dict[str, Any] | None:
    """None when fewer than two ranks exchange point to point."""
    stages = [one for one in profiles if one.exposed_by_kind_ns.get(_POINT_TO_POINT) is not None]
    if len(stages) < 2:
        return None
    compute_ns = np.array([one.breakdown.compute_ns for one in stages], dtype=np.float64)
    bubble_ns = np.array([one.exposed_by_kind_ns[_POINT_TO_POINT] for one in stages], dtype=np.float64)
    total_ns = np.array([max(one.breakdown.total_ns, 1) for one in stages], dtype=np.float64)
    mean_ns = float(compute_ns.mean())
    return {
        "ranks": [one.rank for one in stages],
        "bubble_ratio": float(bubble_ns.sum() / total_ns.sum()),
        "bubble_us": {str(one.rank): float(ns) / 1000 for one, ns in zip(stages, bubble_ns, strict=True)},
        "imbalance_ratio": float(compute_ns.max() / mean_ns - 1) if mean_ns else 0.0,
        "slowest_rank": stages[int(compute_ns.argmax())].rank,
    }
