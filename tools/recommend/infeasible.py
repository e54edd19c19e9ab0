"""Nothing fits: how far off it is, and what would make it feasible."""

from dataclasses import replace

import numpy as np

from tools.cost.memory import GIB
from tools.errors import InfeasibleError
from tools.recommend.words import short
from tools.recommend.workload import Workload
from tools.recommend.writable import narrowed
from tools.scenario import Plan
from tools.sharding.constraints import Constraints, parse_constraints
from tools.sharding.search import Found, Progress, Search
from tools.sharding.space import decoded

UNLIMITED = 1e9
LARGEST_CLUSTER = 65536


def infeasible(workload: Workload, progress: Progress | None = None) -> InfeasibleError:
    found = _search(workload, UNLIMITED, progress)
    if not len(found.best.step_time_s):
        return InfeasibleError(_nothing_legal(workload))
    # The front has every recomputation; the best, where memory is no limit, only none.
    row = int(np.argmin(found.front.memory_bytes))
    least = found.front.memory_bytes[row] / GIB
    plan = Plan.model_validate(decoded(found.front.plans, row))
    start = (
        f"no legal plan fits: the smallest ({short(plan)}) needs {least:.1f} GiB "
        f"of {workload.limit_gib:.1f} usable a device"
    )
    return InfeasibleError("; ".join([start, *_remedies(workload, progress)]))


def _nothing_legal(workload: Workload) -> str:
    t, c = workload.scenario.training, workload.scenario.cluster
    constrained = ", ".join(f"{name} {text}" for name, text in _constrained(workload).items())
    return (
        f"no plan is legal: {t.framework} accepts none for {c.num_devices} devices, a global batch of "
        f"{t.global_batch_size} and the constraints {constrained or 'none'}"
    )


def _constrained(workload: Workload) -> dict[str, str]:
    """What the user forbade, but for memory."""
    own = parse_constraints(workload.scenario.constraints, workload.scenario.plan)
    changes = {} if own.max_changes is None else {"max_changes": str(own.max_changes)}
    return {name: own.describe(name) for name in own.fields} | changes


def _remedies(workload: Workload, progress: Progress | None) -> list[str]:
    constrained = _constrained(workload)
    if constrained:
        fraction = workload.constraints.max_memory_fraction
        bare = Constraints(max_memory_fraction=fraction)
        freed = replace(workload, constraints=narrowed(workload.scenario, bare))
        if len(_search(freed, fraction, progress).best.step_time_s):
            return [f"without the constraints on {', '.join(constrained)} plans fit"]
    return [
        _more_devices(workload, progress),
        "8-bit optimizer state would save 6 of the 12 bytes that Adam keeps for each parameter",
    ]


def _more_devices(workload: Workload, progress: Progress | None) -> str:
    s = workload.scenario
    devices = s.cluster.num_devices
    while devices * 2 <= LARGEST_CLUSTER:
        devices *= 2
        cluster = s.cluster.model_copy(update={"num_devices": devices})
        batch = s.training.global_batch_size * devices // s.cluster.num_devices
        training = s.training.model_copy(update={"global_batch_size": batch})
        grown = replace(workload, scenario=s.model_copy(update={"cluster": cluster, "training": training}))
        if len(_search(grown, workload.constraints.max_memory_fraction, progress).best.step_time_s):
            return f"{devices} devices (with the batch grown alike) would do"
    return f"not even {devices} devices would do"


def _search(workload: Workload, fraction: float, progress: Progress | None) -> Found:
    constraints = replace(workload.constraints, max_memory_fraction=fraction)
    return Search(workload.scenario, constraints, workload.calibration).run(progress)
