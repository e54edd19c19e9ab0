"""The feed-forward part of a layer: dense, or mixture of experts with routing over expert ranks.

No token is dropped and there is no balancing loss, so that the result does not depend on the plan.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional

from testbed.layout import Axis, exchange_rows
from testbed.tensor_parallel import ColumnLinear, Region, Router, RowLinear
from tools.scenario import ModelSpec


class GatedMlp(nn.Module):
    """Products of one feed-forward network; what it gives is a partial sum where `tp` divides it."""

    def __init__(self, hidden: int, width: int, gated: bool, tp: Axis) -> None:
        super().__init__()
        self.gate = ColumnLinear(hidden, width, tp) if gated else None
        self.up = ColumnLinear(hidden, width, tp)
        self.down = RowLinear(width, hidden, tp)

    def forward(self, hidden: Tensor) -> Tensor:
        wide: Tensor = self.up(hidden)
        wide = functional.gelu(wide) if self.gate is None else functional.silu(self.gate(hidden)) * wide
        result: Tensor = self.down(wide)
        return result


class FeedForward(nn.Module):
    """The network as a region that tensor ranks share."""

    def __init__(self, hidden: int, width: int, gated: bool, region: Region) -> None:
        super().__init__()
        self.mlp = GatedMlp(hidden, width, gated, region.tp)
        self.region = region

    def forward(self, hidden: Tensor) -> Tensor:
        return self.region.leave(self.mlp(self.region.enter(hidden)))


@dataclass(frozen=True)
class Routes:
    """Where each copy of a token goes: `sent[r][e]` to expert e of rank r, `received[r][e]` from rank r."""

    tokens: Tensor
    """Token of each copy, copies sorted by expert."""
    weights: Tensor
    sent: list[list[int]]
    received: list[list[int]]


class ExpertSet(nn.Module):
    """The experts of this rank under their numbers in the whole model."""

    def __init__(self, model: ModelSpec, numbers: range) -> None:
        super().__init__()
        hidden, width = model.hidden_size, model.moe_intermediate_size
        self.networks = nn.ModuleDict(
            {str(i): GatedMlp(hidden, width, model.gated_mlp, Axis()) for i in numbers}
        )

    def forward(self, rows: Tensor, received: Sequence[Sequence[int]]) -> Tensor:
        """Rows come and go in order of source rank, then expert. An expert without tokens runs too: its
        gradients are zeros and no rank waits for them."""
        blocks = torch.split(rows, [count for row in received for count in row])
        own = len(self.networks)
        by_expert = [
            torch.split(network(torch.cat(blocks[i::own])), [row[i] for row in received])
            for i, network in enumerate(self.networks.values())
        ]
        return torch.cat([parts[source] for source in range(len(received)) for parts in by_expert])


class ExpertLayer(nn.Module):
    def __init__(self, model: ModelSpec, region: Region, ep: Axis, balanced: bool) -> None:
        super().__init__()
        hidden, count = model.hidden_size, model.num_experts // ep.size
        self.router = Router(hidden, model.num_experts)
        self.experts = ExpertSet(model, range(ep.rank * count, (ep.rank + 1) * count))
        shared = model.shared_expert_intermediate_size
        self.shared = FeedForward(hidden, shared, model.gated_mlp, region) if shared else None
        self.copies, self.ep, self.balanced = model.num_experts_per_tok, ep, balanced

    def forward(self, hidden: Tensor) -> Tensor:
        tokens = hidden.flatten(0, 1)
        routes = self._routes(tokens)
        sent, received = ([sum(row) for row in table] for table in (routes.sent, routes.received))
        arrived = exchange_rows(tokens[routes.tokens], self.ep, sent, received)
        done = exchange_rows(self.experts(arrived, routes.received), self.ep, received, sent)
        weighted = done * routes.weights.unsqueeze(-1)
        routed = torch.zeros_like(tokens).index_add(0, routes.tokens, weighted).view_as(hidden)
        return routed if self.shared is None else routed + self.shared(hidden)

    def _routes(self, tokens: Tensor) -> Routes:
        scores = self.router(tokens).float().softmax(dim=-1)
        choice = deal_out(tokens.shape[0], self.copies, scores) if self.balanced else None
        chosen = scores.topk(self.copies, dim=-1).indices if choice is None else choice
        weights = scores.gather(-1, chosen)
        weights = (weights / weights.sum(dim=-1, keepdim=True)).to(tokens.dtype)
        order = chosen.flatten().argsort(stable=True)
        sent = self._counts(chosen, scores.shape[-1])
        return Routes(order // self.copies, weights.flatten()[order], sent, self._received(sent, tokens))

    def _counts(self, chosen: Tensor, experts: int) -> list[list[int]]:
        if self.balanced:
            rows = chosen.numel()
            counts = [rows // experts + (i < rows % experts) for i in range(experts)]
        else:
            counts = torch.bincount(chosen.flatten(), minlength=experts).tolist()
        own = experts // self.ep.size
        return [counts[start : start + own] for start in range(0, experts, own)]

    def _received(self, sent: list[list[int]], tokens: Tensor) -> list[list[int]]:
        if self.ep.size == 1:
            return sent
        if self.balanced:  # every rank deals out the same number of copies
            return [sent[self.ep.rank]] * self.ep.size
        counts = torch.tensor(sent, device=tokens.device)
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts, group=self.ep.group)
        table: list[list[int]] = arriving.tolist()
        return table


def deal_out(tokens: int, copies: int, scores: Tensor) -> Tensor:
    """Experts in turn, whatever the scores say."""
    turns = torch.arange(tokens * copies, device=scores.device) % scores.shape[-1]
    return turns.view(tokens, copies)
