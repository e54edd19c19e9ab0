"""Workloads of real size that are optimized once and looked at by many tests."""

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

from tools.recommend.optimize import optimize
from tools.recommend.report import Recommendation
from tools.scenario import parse_scenario

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "llama-3.1-70b-64xh100.json"
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


def llama(**changed: object) -> Raw:
    """The example of the repo; a part given as None is left out."""
    raw: Raw = json.loads(EXAMPLE.read_text()) | changed
    return {name: part for name, part in raw.items() if part is not None}


def in_framework(raw: Raw, framework: str) -> Raw:
    changed = copy.deepcopy(raw) | {"plan": None}
    changed["training"]["framework"] = framework
    return {name: part for name, part in changed.items() if part is not None}


def report(raw: Raw) -> Any:  # noqa: ANN401 - JSON
    """As the command and the API print it."""
    return recommendation(raw).model_dump(mode="json")


def recommendation(raw: Raw) -> Recommendation:
    return _recommendation(json.dumps(raw))


@cache
def _recommendation(text: str) -> Recommendation:
    return optimize(parse_scenario(json.loads(text), need_plan=False))
