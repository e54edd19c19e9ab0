"""Made-up sequences with something to learn, the same for every plan.

A token is five times the one before plus a small random step, modulo the vocabulary: a model that trains
gets better, one whose gradients are lost does not. Each sequence has a seed of its own, so that a rank
draws only its part.
"""

import torch
from torch import Tensor

from tools.trainer.attention import rank_positions
from tools.trainer.layout import Axis
from tools.trainer.weights import name_seed

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
