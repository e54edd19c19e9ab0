"""Workloads of real size that are optimized once and looked at by many tests."""

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

from tools.recommend.optimize import optimize, workload_of
from tools.recommend.report import Recommendation
from tools.recommend.workload import Workload
from tools.scenario import Plan, parse_scenario

REPO = Path(__file__).resolve().parents[3]
TRACES = REPO / "examples" / "traces" / "ddp-gloo-straggler"
Raw = dict[str, Any]
MIXTRAL: Raw = {
    "model": {
        "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "vocab_size": 32000, "num_experts": 8, "num_experts_per_tok": 2,
        "moe_intermediate_size": 14336,
    },
    "cluster": {"device": "h100-sxm-80gb", "num_devices": 64},
    "training": {
        "seq_len": 4096, "global_batch_size": 256, "precision": "bf16", "framework": "megatron-core",
    },
    "plan": {
        "tp": 4, "pp": 4, "cp": 1, "ep": 4, "dp": 4, "dp_shard": 4, "zero_stage": 1, "micro_batch_size": 1,
        "recompute": "full",
    },
}  # fmt: skip
LLAMA_405B: Raw = {
    "model": {
        "num_hidden_layers": 126, "hidden_size": 16384, "intermediate_size": 53248, "vocab_size": 128256,
        "num_attention_heads": 128, "num_key_value_heads": 8, "head_dim": 128,
    },
    "cluster": {"device": "h100-sxm-80gb", "num_devices": 8},
    "training": {
        "seq_len": 8192, "global_batch_size": 64, "precision": "bf16", "framework": "megatron-core",
    },
}  # fmt: skip
TOO_LARGE: Raw = {
    "tp": 1, "pp": 1, "cp": 1, "ep": 1, "dp": 64, "dp_shard": 1, "zero_stage": 0, "micro_batch_size": 1,
    "recompute": "none",
}  # fmt: skip
"""A plan of the example on 64 devices."""


def llama(**changed: object) -> Raw:
    """The example of the repo; a part that is None is left out."""
    raw: Raw = json.loads((REPO / "examples" / "llama-3.1-70b-64xh100.json").read_text()) | changed
    return {name: part for name, part in raw.items() if part is not None}


def in_framework(raw: Raw, framework: str, **training: object) -> Raw:
    """Without a plan."""
    changed = copy.deepcopy(raw)
    changed["training"] |= {"framework": framework, **training}
    changed.pop("plan", None)
    return changed


def workload_for(raw: Raw) -> Workload:
    return workload_of(parse_scenario(raw, need_plan=False))


def plan_of(raw: Raw) -> Plan:
    plan = parse_scenario(raw).plan
    assert plan is not None
    return plan


def report(raw: Raw) -> Any:  # noqa: ANN401 - JSON
    """As the command and the API print it."""
    return recommendation(raw).model_dump(mode="json")


def recommendation(raw: Raw) -> Recommendation:
    return _recommendation(json.dumps(raw))


@cache
def _recommendation(text: str) -> Recommendation:
    return optimize(parse_scenario(json.loads(text), need_plan=False))
