"""What part of the step each cause costs, over all ranks: the figures that the diagnosis weighs.

Steady steps are used where the trace marks steps, else everything. Compute is parted by kernel time into
matrix work, which the arithmetic units bound, and the rest (element-wise, norms, optimizer), which memory
bandwidth bounds; matrix work under the slope of the roofline moves to memory too.
"""

from dataclasses import dataclass

from tools.trace.breakdown import Breakdown, add_breakdowns
from tools.trace.rank_profile import RankProfile


@dataclass(frozen=True)
class Shares:
    """Ratios of rank time; the first five add up to 1."""

    compute: float
    memory: float
    communication: float
    pipeline: float
    host: float
    waiting: float
    """Part of `communication` spent on ranks that had not arrived."""
    steady: Breakdown

    def ranked(self) -> list[tuple[str, float]]:
        """Causes, largest share first."""
        causes = ("compute", "memory", "communication", "pipeline", "host")
        return sorted(((name, float(getattr(self, name))) for name in causes), key=lambda one: -one[1])


def steady_breakdown(profile: RankProfile) -> Breakdown:
    """Of the steps after warm-up, or of everything when no steps are marked."""
    steps = profile.steady_steps
    return add_breakdowns([step.breakdown for step in steps]) if steps else profile.breakdown


def weigh(profiles: list[RankProfile], waiting_ns: float, has_pipeline: bool) -> Shares:
    """Shares over all ranks; `waiting_ns` is the sum of all ranks' waiting."""
    steady = add_breakdowns([steady_breakdown(profile) for profile in profiles])
    whole = add_breakdowns([profile.breakdown for profile in profiles])
    total = max(steady.total_ns, 1)
    exposed = steady.exposed_communication_ns / total
    point_to_point = _point_to_point_ratio(profiles, whole) if has_pipeline else 0.0
    bandwidth_bound = _bandwidth_bound_ratio(profiles)
    compute = steady.compute_ns / total
    waiting = min(waiting_ns / max(whole.communication_ns, 1), 1.0) * exposed
    return Shares(
        compute=compute * (1 - bandwidth_bound),
        memory=steady.memory_ns / total + compute * bandwidth_bound,
        communication=exposed * (1 - point_to_point),
        pipeline=exposed * point_to_point,
        host=steady.idle_ns / total,
        waiting=waiting,
        steady=steady,
    )


def _point_to_point_ratio(profiles: list[RankProfile], whole: Breakdown) -> float:
    """Share of exposed communication that is send and receive."""
    exchanged = sum(profile.exposed_by_kind_ns.get("send_recv", 0) for profile in profiles)
    return min(exchanged / max(whole.exposed_communication_ns, 1), 1.0)


def _bandwidth_bound_ratio(profiles: list[RankProfile]) -> float:
    """Share of kernel time that memory bandwidth bounds."""
    matrix = sum(profile.matrix_kernel_ns for profile in profiles)
    other = sum(profile.other_kernel_ns for profile in profiles)
    sloped = sum(point.time_ns for one in profiles for point in one.roofline if point.bound == "memory")
    return min(other + sloped, matrix + other) / (matrix + other) if matrix + other else 0.0
