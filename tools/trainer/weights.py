"""Weights that depend on the seed and the parameter's name only, whatever the plan.

Each rank draws the whole parameter and keeps its part: tensor ranks by the layer's split, shards by what
`fully_shard` left them. Drawn on the CPU, so that every device starts from the same numbers.
"""

import hashlib
import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from tools.trainer.tensor_parallel import ColumnLinear, Norm, RowLinear, VocabularyEmbedding, local_tensor


def initialise(model: nn.Module, seed: int) -> None:
    """Fills every parameter in place."""
    with torch.no_grad():
        for module, name, parameter in _own_parameters(model):
            part = _tensor_part(module, parameter, name, seed)
            local_tensor(parameter).copy_(_shard(part, parameter))


def name_seed(seed: int, name: str) -> int:
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def _own_parameters(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Parameter]]:
    """Each parameter once, with the module it belongs to."""
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield module, f"{prefix}.{name}", parameter


def _tensor_part(module: nn.Module, parameter: Tensor, name: str, seed: int) -> Tensor:
    """What this tensor rank holds of the parameter, whole where the layer is not divided."""
    shape = list(parameter.shape)
    if not isinstance(module, ColumnLinear | RowLinear | VocabularyEmbedding):
        return _draw(module, shape, name, seed)
    shape[module.split_dimension] *= module.tp.size
    whole = _draw(module, shape, name, seed)
    parts: tuple[Tensor, ...] = torch.chunk(whole, module.tp.size, dim=module.split_dimension)
    return parts[module.tp.rank]


def _draw(module: nn.Module, shape: list[int], name: str, seed: int) -> Tensor:
    """Ones for norms; else normal with the variance that keeps a product's size."""
    if isinstance(module, Norm):
        return torch.ones(shape)
    generator = torch.Generator().manual_seed(name_seed(seed, name))
    return torch.randn(shape, generator=generator) / math.sqrt(shape[-1])


def _shard(part: Tensor, parameter: Tensor) -> Tensor:
    if not isinstance(parameter, DTensor):
        return part
    shape, offset = compute_local_shape_and_global_offset(
        parameter.shape, parameter.device_mesh, parameter.placements
    )
    return part[tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))]
