"""What experts prefer among plans that the model cannot tell apart.

Published recipes carry experience that the cost model lacks: which features are more trouble than they look.
A conditional logit over the experts' choices (`tools.validate.preferences`) gave each feature a weight: the
log of step time that the feature must save to be chosen. The weights order plans only inside the error of a
comparison; beyond it the prediction decides.
"""

import json
from collections.abc import Mapping
from functools import cache

import numpy as np
from numpy.typing import NDArray

import kb_seed
from tools.cost.inputs import Array
from tools.scenario import RECOMPUTES, Scenario, get_framework
from tools.sharding.ranked import Ranked

REMATERIALISING = ("maxtext", "torchtitan")
"""Frameworks whose recipes recompute as a rule."""
SHARDED_FIRST = ("torch-fsdp", "torch-fsdp2", "torchtitan", "maxtext")
"""Frameworks built around sharded data parallelism, where other degrees are added last."""
TIGHT_MEMORY = 0.9


def features(scenario: Scenario, ranked: Ranked, capacity_bytes: float) -> dict[str, Array]:
    """One column a feature, one row a plan."""
    p, framework = ranked.plans, scenario.training.framework
    data_ranks = p["dp"] * p["cp"]
    filled = ranked.memory_bytes / capacity_bytes
    sharded_first = float(framework in SHARDED_FIRST)
    default_stage = get_framework(framework).zero_stage
    none, selective, full = (p["recompute"] == code for code in range(len(RECOMPUTES)))
    columns: dict[str, NDArray[np.generic]] = {
        "tensor_doublings": _doublings(p["tp"]),
        "tensor_doublings_beside_fsdp": _doublings(p["tp"]) * sharded_first,
        "pipeline_doublings": _doublings(p["pp"]),
        "pipeline_doublings_beside_fsdp": _doublings(p["pp"]) * sharded_first,
        "chunk_doublings": _doublings(p["vpp"]),
        "context_doublings": _doublings(p["cp"]),
        "expert_doublings": _doublings(p["ep"]),
        "sharded_experts": p["etp"] > 1,
        "micro_batch_doublings": _doublings(p["micro_batch_size"]),
        "micro_batch_doublings_in_pipeline": _doublings(p["micro_batch_size"]) * (p["pp"] > 1),
        "hybrid_sharding": (p["dp_shard"] < data_ranks) & (p["zero_stage"] > 0),
        "other_zero_stage": (data_ranks > 1) & (p["zero_stage"] != default_stage),
        "selective_recompute": selective,
        "full_recompute": full,
        "no_recompute_where_usual": none & (framework in REMATERIALISING),
        "tight_memory": filled > TIGHT_MEMORY,
        "filled_memory": filled,
    }
    return {name: np.asarray(column, dtype=np.float64) for name, column in columns.items()}


def _doublings(degree: NDArray[np.int64]) -> Array:
    return np.log2(np.maximum(degree, 1.0))


@cache
def shipped_weights() -> Mapping[str, float]:
    text = kb_seed.folder("calibration").joinpath("preferences.json").read_text()
    weights: dict[str, float] = json.loads(text)["weights"]
    return weights


def reluctance(columns: Mapping[str, Array], weights: Mapping[str, float]) -> Array:
    """Log of step time that each plan's features would have to save."""
    return sum((weights[name] * column for name, column in columns.items()), np.zeros(()))
