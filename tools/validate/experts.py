"""Published workloads with the plan their experts chose, and what the search offers for each."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from typing import cast

import numpy as np
from numpy.typing import NDArray

from tools.cost.encode import scenario_device
from tools.cost.predict import predict
from tools.fit.measurements import SMALL_MODEL_SOURCE, Measurement
from tools.scenario import RECOMPUTES, Plan, Scenario
from tools.sharding.constraints import Constraints
from tools.sharding.search import Found, Search
from tools.sharding.space import Table

KEPT = 50_000
CLOSE = 0.02
"""Predicted times this near count as the same, where at most one field differs."""


@dataclass(frozen=True)
class Offer:
    """One workload: the expert's run, the search's best plans and how each differs from the expert's."""

    expert: Measurement
    found: Found
    capacity_bytes: float
    differences: NDArray[np.int64]
    expert_time_s: float

    def agrees(self, row: int) -> bool:
        close = abs(self.found.best.step_time_s[row] / self.expert_time_s - 1.0) <= CLOSE
        return bool(self.differences[row] == 0 or (self.differences[row] == 1 and close))


def expert_runs(rows: Sequence[Measurement]) -> list[Measurement]:
    """The fastest run of each group (source, device and model)."""
    best: dict[str, Measurement] = {}
    for row in rows:
        if row.source != SMALL_MODEL_SOURCE and (
            row.group not in best or _rate(row) > _rate(best[row.group])
        ):
            best[row.group] = row
    return [best[group] for group in sorted(best)]


def _rate(row: Measurement) -> float:
    t = row.scenario.training
    return t.global_batch_size * t.seq_len / row.scenario.cluster.num_devices / row.step_time_s


def offers(experts: Sequence[Measurement]) -> Iterator[Offer]:
    """Two searches side by side; the expert's plan is hidden from them."""
    with get_context("spawn").Pool(2) as pool:
        yield from pool.imap(offer, experts)


def offer(expert: Measurement) -> Offer:
    scenario = expert.scenario
    found = Search(scenario, Constraints(), kept=KEPT).run()
    capacity = float(scenario_device(scenario.cluster).memory_bytes)
    plan = scenario.plan
    if plan is None:
        raise ValueError(f"{expert.id} has no plan")
    differences = count_differences(plan, expert.stated, found.best.plans)
    return Offer(expert, found, capacity, differences, predicted_s(scenario))


def predicted_s(scenario: Scenario) -> float:
    return float(cast("float", predict([scenario])[0]["step_time_s"]))


def count_differences(expert: Plan, stated: frozenset[str], plans: Table) -> NDArray[np.int64]:
    """In how many of the fields that the source states each plan differs; sharding counts as one field."""
    fields = [name for name in ("tp", "pp", "cp", "ep", "micro_batch_size") if name in stated]
    different = sum(
        (plans[name] != getattr(expert, name) for name in fields), np.zeros(len(plans["tp"]), np.int64)
    )
    if "vpp" in stated and expert.pp > 1:
        different = different + (plans["vpp"] != expert.vpp)
    if "sequence_parallel" in stated and expert.tp > 1:
        different = different + (plans["sequence_parallel"] != expert.sequence_parallel)
    if "recompute" in stated and expert.recompute is not None:
        different = different + (plans["recompute"] != RECOMPUTES.index(expert.recompute))
    return different + _sharded_otherwise(expert, "zero_stage" in stated, plans)


def _sharded_otherwise(expert: Plan, stage_known: bool, plans: Table) -> NDArray[np.bool_]:
    ranks = expert.dp * expert.cp
    whole = (plans["zero_stage"] > 0) & (plans["dp_shard"] == plans["dp"] * plans["cp"])
    otherwise = whole != (expert.zero_stage > 0 and expert.dp_shard == ranks)
    if stage_known:
        otherwise = otherwise | (plans["zero_stage"] != expert.zero_stage)
    return np.asarray(otherwise & (ranks > 1))
