"""A small Llama-like model under plain data parallelism on CPU: the measured side of the calibration example.

    asap profile --out traces -- torchrun --nproc-per-node 2 train.py scenario.json

Takes every size from the scenario, so that measured and predicted speak of the same job.
"""

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

STEPS = 14


@cache
def angles(length: int, width: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the rotary position embedding."""
    rates = 10_000.0 ** (-torch.arange(0, width, 2) / width)
    turned = torch.outer(torch.arange(length), rates).repeat(1, 2)
    return turned.cos(), turned.sin()


def rotate(x: Tensor) -> Tensor:
    """Rotary position embedding over the last two axes (tokens, width)."""
    cosine, sine = angles(x.shape[-2], x.shape[-1])
    left, right = x.chunk(2, dim=-1)
    return x * cosine + torch.cat([-right, left], dim=-1) * sine


class Layer(nn.Module):
    """Attention and gated feed-forward, each behind a norm."""

    def __init__(self, hidden: int, heads: int, width: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.RMSNorm(hidden) for _ in range(2))
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.up = nn.Linear(hidden, 2 * width, bias=False)
        self.down = nn.Linear(width, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norms[0](x))
        gate, value = self.up(self.norms[1](x)).chunk(2, dim=-1)
        return x + self.down(functional.silu(gate) * value)

    def attend(self, x: Tensor) -> Tensor:
        parts = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1)
        )
        query, key, value = parts
        mixed = functional.scaled_dot_product_attention(rotate(query), rotate(key), value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


def build(sizes: dict[str, Any]) -> nn.Module:
    hidden, vocabulary = sizes["hidden_size"], sizes["vocab_size"]
    layers = [
        Layer(hidden, sizes["num_attention_heads"], sizes["intermediate_size"])
        for _ in range(sizes["num_hidden_layers"])
    ]
    return nn.Sequential(
        nn.Embedding(vocabulary, hidden),
        *layers,
        nn.RMSNorm(hidden),
        nn.Linear(hidden, vocabulary, bias=False),
    )


def main() -> None:
    scenario = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    torch.manual_seed(0)
    distributed.init_process_group("gloo")
    model = DistributedDataParallel(build(scenario["model"]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    rows = scenario["plan"]["micro_batch_size"]
    tokens = torch.randint(scenario["model"]["vocab_size"], (rows, scenario["training"]["seq_len"] + 1))
    for _ in range(STEPS):
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
    distributed.destroy_process_group()


main()
