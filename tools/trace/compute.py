"""What the compute time of a step is: products at the roof, what they lose to it, attention, the rest."""

from collections.abc import Sequence

from tools.scenario.spec import Result
from tools.trace.rank_profile import RankProfile
from tools.trace.roofline import RoofPoint


def _is_attention(point: RoofPoint) -> bool:
    return "attention" in point.op or "attn" in point.op


class ComputeSplit(Result):
    """Seconds of the mean step in matrix products and attention; None for what the trace does not show."""

    ideal_s: float | None
    """What the products take at the device's roof."""
    inefficiency_s: float | None
    attention_s: float
    other_s: float
    """Compute kernels without recorded shapes."""


def split_compute(profiles: Sequence[RankProfile]) -> ComputeSplit | None:
    """By the shapes that the traces record; None if they record none."""
    points = [(profile, point) for profile in profiles for point in profile.roofline]
    if not points:
        return None
    scale = 1e-9 / max(sum(max(len(profile.steps), 1) for profile in profiles), 1)
    attention_ns = sum(point.time_ns for _, point in points if _is_attention(point))
    products = [point for _, point in points if not _is_attention(point)]
    products_ns = sum(point.time_ns for point in products)
    roofed = bool(products) and all(point.roof_flops_per_s for point in products)
    ideal_ns = sum(
        min(point.flops * point.count / (point.roof_flops_per_s or 1.0) * 1e9, float(point.time_ns))
        for point in products
    )
    compute_ns = sum(profile.breakdown.compute_ns for profile in profiles)
    return ComputeSplit(
        ideal_s=ideal_ns * scale if roofed else None,
        inefficiency_s=(products_ns - ideal_ns) * scale if roofed else None,
        attention_s=attention_ns * scale,
        other_s=max(compute_ns - products_ns - attention_ns, 0) * scale,
    )
