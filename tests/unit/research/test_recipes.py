import subprocess
from pathlib import Path

from research.recipes import Key, bridge_recipes, bridge_snapshot

FILES = {
    "src/megatron/bridge/training/mixed_precision.py": """
from dataclasses import dataclass

@dataclass
class Precision:
    grad_reduce_in_fp32: bool = True
    fp8_dot_product_attention: bool = False
""",
    "src/megatron/bridge/recipes/qwen.py": """
import torch

def pretrain_config():
    cfg = unknown_library.build()
    cfg.model.moe_token_dispatcher_type = "alltoall"
    cfg.model.recompute_granularity = "full"
    cfg.optimizer.use_precision_aware_optimizer = True
    cfg.optimizer.exp_avg_dtype = torch.bfloat16
    return cfg
""",
    "src/megatron/bridge/perf_recipes/common.py": """
def _graphs(cfg, *, whole=False):
    cfg.model.cuda_graph_impl = "full_iteration" if whole else "transformer_engine"
    cfg.model.cuda_graph_scope = [] if whole else ["moe_router", "attn"]
    if torch.cuda.is_available():
        cfg.model.cuda_graph_impl = "none"
""",
    "src/megatron/bridge/perf_recipes/qwen/gb200/qwen3_moe.py": """
from megatron.bridge.perf_recipes.common import _graphs
from megatron.bridge.recipes.qwen import pretrain_config as base
from megatron.bridge.training.mixed_precision import Precision

def qwen3_30b_a3b_pretrain_8gpu_gb200_bf16_config():
    cfg = base()
    cfg.mixed_precision = Precision()
    if not cfg.mixed_precision.fp8_dot_product_attention:
        _graphs(cfg)
    cfg.ddp.grad_reduce_in_fp32 = False
    return cfg

def qwen3_30b_a3b_pretrain_8gpu_gb200_fp8mx_config():
    cfg = qwen3_30b_a3b_pretrain_8gpu_gb200_bf16_config()
    cfg.mixed_precision = Precision(fp8_dot_product_attention=True)
    cfg.model.moe_token_dispatcher_type = "flex"
    cfg.model.moe_flex_dispatcher_backend = "hybridep"
    cfg.model.recompute_granularity = None
    _graphs(cfg, whole=True)
    return cfg
""",
}


def test_recipes_are_read_through_their_helpers_and_what_cannot_be_decided_is_passed_over(
    tmp_path: Path,
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"], ["tag", "v9"]):
        subprocess.run([*git, *command], check=True)

    found = {key: recipe.settings for key, recipe in bridge_recipes(bridge_snapshot(tmp_path, "v9"))}

    shared = {"optimizer_state": "bf16", "gradient_dtype": "bf16", "overlap_moe_communication": False}
    assert found == {
        Key("qwen3_30b_a3b", "gb200", "bf16", lora=False): {
            **shared,
            "moe_dispatcher": "alltoall",
            "cuda_graph": "scoped",
            "cuda_graph_scopes": ["attn", "moe_router"],
            "recompute": "full",
        },
        Key("qwen3_30b_a3b", "gb200", "mxfp8", lora=False): {
            **shared,
            "moe_dispatcher": "hybridep",
            "cuda_graph": "full",
            "recompute": "none",
            "precision_scope": {"mxfp8": ["core_attn"]},
        },
    }
