"""Scenarios small enough to write every plan down, and the list of plans made by counting alone.

Plain loops over all values of every field and `legal_mask`: nothing of the search space's own code is used.
"""

from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tools.model.predict import Costs, predict_rows
from tools.physics.encode import encode_plans, scenario_device
from tools.scenario import (
    RECOMPUTES,
    SCHEDULES,
    SEARCHED_FIELDS,
    Plan,
    PlanColumns,
    PlanFacts,
    Scenario,
    get_framework,
    legal_mask,
    parse_scenario,
)
from tools.scenario.columns import decode_value

FIELDS = SEARCHED_FIELDS
MOE: dict[str, Any] = {
    "num_hidden_layers": 4, "hidden_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 4,
    "vocab_size": 32000, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 2048,
}  # fmt: skip
DENSE: dict[str, Any] = {
    "num_hidden_layers": 6, "hidden_size": 1536, "num_attention_heads": 12, "num_key_value_heads": 6,
    "vocab_size": 32000, "intermediate_size": 6144,
}  # fmt: skip
EXPERT_DEGREES = (1, 2, 3, 4, 8)
"""Tried as ep and etp on 8 devices and 4 experts; 3 can never be legal."""
FRAMEWORKS = ("megatron-core", "torchtitan", "maxtext", "deepspeed", "torch-fsdp", "other")
EVERY_FRAMEWORK = pytest.mark.parametrize("framework", FRAMEWORKS)
BOTH_MODELS = pytest.mark.parametrize("moe", [True, False], ids=["moe", "dense"])


def scenario(framework: str, moe: bool = True, **changed: object) -> Scenario:
    """8 devices for the experts, 12 for the dense model, whose degrees are then not powers of two only."""
    raw = {
        "model": MOE if moe else DENSE,
        "cluster": {
            "device": changed.get("device", "h100-sxm-80gb"),
            "num_devices": changed.get("devices", 8 if moe else 12),
            "devices_per_node": 4,
            "overrides": {"memory_gib": changed["memory_gib"]} if "memory_gib" in changed else {},
        },
        "training": {
            "seq_len": changed.get("seq_len", 2048),
            "global_batch_size": changed.get("batch", 8 if moe else 12),
            "precision": "bf16",
            "framework": framework,
        },
        "plan": changed.get("plan"),
        "constraints": changed.get("constraints"),
    }
    return parse_scenario({name: part for name, part in raw.items() if part is not None}, need_plan=False)


def every_legal_plan(s: Scenario) -> NDArray[np.int64]:
    """One row a plan and one column a field, in the form in which a plan is written once (`written_once`)."""
    parts = []
    for degrees in _degrees(s.cluster.num_devices):
        rows = _crossed(s, degrees)
        rows = rows[written_once(s, rows)]
        legal = legal_mask(PlanFacts(s.model, s.cluster, s.training, columns(rows)))
        parts.append(rows[np.broadcast_to(legal, len(rows))])
    return np.concatenate(parts)


@cache
def counted(framework: str, moe: bool) -> NDArray[np.int64]:
    """The list takes seconds to make and is the same for any memory size."""
    return every_legal_plan(scenario(framework, moe))


def written_once(s: Scenario, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """No shard group without ZeRO and no ZeRO over one rank, one schedule with one stage, no sequence
    parallelism with one tensor rank, no tensor parallelism inside the experts of a model without them."""
    c = {name: rows[:, i] for i, name in enumerate(FIELDS)}
    usual = SCHEDULES.index(get_framework(s.training.framework).schedule)
    sharding = (c["zero_stage"] > 0) == (c["dp_shard"] > 1)
    pipeline = (c["pp"] > 1) | (c["schedule"] == usual)
    sequence = (c["tp"] > 1) | (c["sequence_parallel"] == 0)
    return np.asarray(sharding & pipeline & sequence & ((c["etp"] == 1) | s.model.is_moe), dtype=np.bool_)


def _degrees(devices: int) -> list[tuple[int, ...]]:
    values = range(1, devices + 1)
    return [d for d in product(values, repeat=4) if d[0] * d[1] * d[2] * d[3] == devices]


def _crossed(s: Scenario, degrees: tuple[int, ...]) -> NDArray[np.int64]:
    tp, pp, cp, dp = degrees
    devices = range(1, s.cluster.num_devices + 1)
    experts = EXPERT_DEGREES if s.model.is_moe else (1,)
    values: dict[str, Any] = {
        "tp": [tp],
        "pp": [pp],
        "vpp": range(1, s.model.num_hidden_layers + 4),
        "cp": [cp],
        "ep": experts,
        "etp": experts,
        "dp": [dp],
        "dp_shard": [d for d in devices if d <= dp * cp],
        "zero_stage": range(4),
        "micro_batch_size": range(1, s.training.global_batch_size // dp + 1),
        "sequence_parallel": [0, 1],
        "recompute": range(len(RECOMPUTES)),
        "schedule": range(len(SCHEDULES)),
    }
    grids = np.meshgrid(*(np.asarray(values[name]) for name in FIELDS), indexing="ij")
    return np.stack([grid.ravel() for grid in grids], axis=1).astype(np.int64)


def columns(rows: NDArray[np.int64]) -> PlanColumns:
    return PlanColumns(zip(FIELDS, rows.T, strict=True))


def listed(rows: NDArray[np.int64]) -> list[Plan]:
    return [
        Plan.model_validate({name: decode_value(name, code) for name, code in zip(FIELDS, row, strict=True)})
        for row in rows.tolist()
    ]


def priced(s: Scenario, rows: NDArray[np.int64]) -> Costs:
    """The cost model's own answer for every row, with the shipped calibration."""
    x, keys = encode_plans(s, columns(rows))
    return predict_rows(x, keys, [s.training.precision]).costs


def fitting_limit_bytes(s: Scenario, fraction: float = 0.92) -> float:
    return float(scenario_device(s.cluster).memory_bytes) * fraction


def todays(row: int, framework: str = "torchtitan") -> Plan:
    """The plan in this row of all legal ones."""
    return listed(counted(framework, True)[row : row + 1])[0]
