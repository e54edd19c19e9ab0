"""Names of host ops whose shapes an analysis uses.

Only innermost ops are listed (`aten::mm`, not `aten::linear` around it), so that no two of them nest and a
launch belongs to one at most.
"""

import re
from functools import cache

COLLECTIVE_OP = "record_param_comms"
OPTIMIZER_MARK = "Optimizer.step#"

GEMM_OPS = frozenset(
    {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_scaled_mm", "aten::_addmm_activation"}
)

ATTENTION_FORWARD_OPS = frozenset(
    {
        "aten::_flash_attention_forward",
        "aten::_efficient_attention_forward",
        "aten::_scaled_dot_product_cudnn_attention",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "flash_attn::_flash_attn_forward",
    }
)

ATTENTION_BACKWARD_OPS = frozenset(
    {
        "aten::_flash_attention_backward",
        "aten::_efficient_attention_backward",
        "aten::_scaled_dot_product_cudnn_attention_backward",
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
        "flash_attn::_flash_attn_backward",
    }
)

SHAPED_OPS = GEMM_OPS | ATTENTION_FORWARD_OPS | ATTENTION_BACKWARD_OPS | {COLLECTIVE_OP}

_COLLECTIVE_PREFIXES = ("nccl:", "gloo:", "rccl:", "mpi:", "ucc:")

_DEVICE_WORK = re.compile("launch|memcpy|memset|synchronize|enqueue", re.IGNORECASE)


@cache
def is_device_work(runtime_call: str) -> bool:
    """Whether a call into the device runtime starts work or waits for it; the many queries do neither."""
    return _DEVICE_WORK.search(runtime_call) is not None


def is_shaped_annotation(name: str) -> bool:
    """Whether an annotation stands for a collective, with the tensor's shape."""
    return name.startswith(_COLLECTIVE_PREFIXES)
