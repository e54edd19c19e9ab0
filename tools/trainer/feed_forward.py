"""The dense feed-forward part of a layer, gated or not, over tensor ranks."""

from torch import Tensor, nn
from torch.nn import functional

from tools.trainer.layout import Axis
from tools.trainer.tensor_parallel import ColumnLinear, Region, RowLinear


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
