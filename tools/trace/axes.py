"""Which parallel axis a collective serves, from its group, its kind and the plan.

A description of the process group decides (`mesh_tp`, `DATA_PARALLEL_GROUP`); else the kind, where only one
axis uses it; else how the group's ranks lie, with ranks ordered tensor → context → data → pipeline
(Megatron-Core's default, and what the cost model assumes).
"""

import re
from itertools import pairwise

from tools.scenario import Plan
from tools.trace.group_times import GroupTime

OTHER = "other"
_DESCRIBED = (
    # Data first: Megatron has "data parallel with context parallel" and "expert data parallel" groups.
    ("dp", re.compile(r"data|fsdp|ddp|shard|replicate|optimizer|(^|_)dp(_|$)", re.IGNORECASE)),
    ("pp", re.compile(r"pipe|(^|_)pp(_|$)", re.IGNORECASE)),
    ("cp", re.compile(r"context|(^|_)cp(_|$)", re.IGNORECASE)),
    ("tp", re.compile(r"tensor|(^|_)tp(_|$)", re.IGNORECASE)),
    ("ep", re.compile(r"expert|(^|_)ep(_|$)", re.IGNORECASE)),
)


def find_axis(one: GroupTime, description: str, plan: Plan) -> str:
    """`tp`, `cp`, `ep`, `dp` or `pp`; `other` when nothing tells."""
    sizes = {"tp": plan.tp, "cp": plan.cp, "dp": plan.dp, "pp": plan.pp}
    used = [axis for axis, size in sizes.items() if size > 1]
    if len(used) == 1 and plan.ep == 1:
        return used[0]
    described = next((axis for axis, pattern in _DESCRIBED if pattern.search(description)), None)
    return described or _by_kind(one.kind, plan) or _by_ranks(one.ranks, plan) or OTHER


def _by_kind(kind: str, plan: Plan) -> str | None:
    if kind == "send_recv" and (plan.pp > 1) != (plan.cp > 1):
        return "pp" if plan.pp > 1 else "cp"
    if kind == "all_to_all" and (plan.ep > 1) != (plan.cp > 1):
        return "ep" if plan.ep > 1 else "cp"
    return None


def _by_ranks(ranks: tuple[int, ...] | None, plan: Plan) -> str | None:
    """The axis whose groups have this many ranks so far apart."""
    if ranks is None or len(ranks) < 2:
        return None
    strides = {after - before for before, after in pairwise(ranks)}
    if len(strides) > 1:
        return None
    layout = (len(ranks), strides.pop())
    above = plan.tp * plan.cp
    layouts = {
        "tp": (plan.tp, 1),
        "cp": (plan.cp, plan.tp),
        "dp": (plan.dp, above),
        "pp": (plan.pp, above * plan.dp),
        "ep": (plan.ep, plan.etp),
    }
    found = [axis for axis, expected in layouts.items() if layout == expected]
    if not found and layout in ((plan.dp * plan.cp, plan.tp), (plan.dp_shard, above)):
        found = ["dp"]
    return found[0] if len(found) == 1 else None
