"""Which configuration format suits a session: that of the framework it was asked about."""

from collections.abc import Mapping
from typing import Any

from tools.export import FORMATS

_BY_FRAMEWORK = {"megatron-core": "megatron", "torch-fsdp": "accelerate", "torch-fsdp2": "torchtitan"}


def format_for(request: Mapping[str, Any]) -> str:
    framework = str((request.get("training") or {}).get("framework", ""))
    wanted = _BY_FRAMEWORK.get(framework, framework)
    return wanted if wanted in FORMATS else next(iter(FORMATS))
