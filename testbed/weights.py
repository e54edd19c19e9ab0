"""Weights and training sequences that depend on the seed only, whatever the plan."""

import hashlib
import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from testbed.attention import rank_positions
from testbed.layout import Axis
from testbed.tensor_parallel import ColumnLinear, Norm, RowLinear, VocabularyEmbedding, local_tensor


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


FACTOR, STEPS = 5, 3


def sequence(vocab_size: int, seq_len: int, seed: int, step: int, index: int) -> Tensor:
    """`seq_len + 1` tokens of one sequence of one step's global batch."""
    generator = torch.Generator().manual_seed(name_seed(seed, f"data.{step}.{index}"))
    moves = torch.randint(STEPS, (seq_len + 1,), generator=generator).tolist()
    token = int(torch.randint(vocab_size, (1,), generator=generator))
    return torch.tensor([token := (token * FACTOR + move) % vocab_size for move in moves])


def batch(
    vocab_size: int, seq_len: int, seed: int, step: int, indices: range, cp: Axis
) -> tuple[Tensor, Tensor]:
    """(inputs, targets) of these sequences at this context rank's positions, each (sequences, positions)."""
    rows = torch.stack([sequence(vocab_size, seq_len, seed, step, index) for index in indices])
    pieces = list(rank_positions(seq_len, cp))
    return _at(rows, pieces, 0), _at(rows, pieces, 1)


def _at(rows: Tensor, pieces: list[range], ahead: int) -> Tensor:
    return torch.cat([rows[:, piece.start + ahead : piece.stop + ahead] for piece in pieces], dim=1)


def rank_sequences(global_batch_size: int, dp_size: int, dp_rank: int) -> range:
    """The sequences of the global batch that a data rank trains on."""
    count = global_batch_size // dp_size
    return range(dp_rank * count, (dp_rank + 1) * count)
