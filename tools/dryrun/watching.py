"""What sees every operator that PyTorch runs and tells the recorders of FLOPs, traffic and memory."""

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

Arguments = tuple[Any, ...]


class Recorder(Protocol):
    def seen(self, operator: Any, args: Arguments, named: Mapping[str, Any], result: object) -> None:  # noqa: ANN401
        """After the operator has run."""


class Watch(TorchDispatchMode):
    """One mode for all recorders; of sharded tensors they see the local work that these turn into."""

    def __init__(self, *recorders: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorders = list(recorders)

    def __torch_dispatch__(
        self,
        operator: Any,  # noqa: ANN401
        types: Any,  # noqa: ANN401
        args: Arguments = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        if DTensor in types:
            return NotImplemented
        named = kwargs or {}
        result = operator(*args, **named)
        for recorder in self.recorders:
            recorder.seen(operator, args, named, result)
        return result


def tensors_of(found: object) -> list[Tensor]:
    """All tensors of a nested result."""
    if isinstance(found, Tensor):
        return [found]
    return [one for one in tree_iter(found) if isinstance(one, Tensor)]
