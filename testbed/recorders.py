"""Recorders of FLOPs, live memory and collectives for every operator that PyTorch runs.

Bytes on the wire are those of ring algorithms (nccl-tests, PERFORMANCE.md).
"""

import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
from torch import Tensor
from torch._C._distributed_c10d import ProcessGroup, _resolve_process_group
from torch.distributed.distributed_c10d import GroupName
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import flop_registry

from testbed.expected import Figures
from testbed.layout import Layout

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


def tensors_of(value: object) -> list[Tensor]:
    """All tensors of a nested result."""
    if isinstance(value, Tensor):
        return [value]
    return [leaf for leaf in tree_iter(value) if isinstance(leaf, Tensor)]


class FlopRecorder:
    def __init__(self) -> None:
        self.flops = 0
        aten = torch.ops.aten
        self._formulas: dict[object, Callable[..., int]] = {
            **flop_registry,
            aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
            aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward_flops,
        }

    def seen(self, operator: Any, args: Arguments, named: Mapping[str, Any], result: object) -> None:  # noqa: ANN401
        formula = self._formulas.get(operator._overloadpacket)
        if formula is not None:
            self.flops += int(formula(*args, **named, out_val=result))


def _attention_flops(
    query: Tensor, key: Tensor, value: Tensor, dropout: float = 0.0, causal: bool = False, **rest: object
) -> int:
    """Two products over the pairs that the kernel computes; it leaves out the blocks above the diagonal."""
    batch, heads, queries, width = query.shape
    pairs = queries * (queries + 1) // 2 if causal else queries * key.shape[2]
    return 2 * batch * heads * pairs * (width + value.shape[3])


def _attention_backward_flops(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    scale: Tensor,
    dropout: float = 0.0,
    causal: bool = False,
    **rest: object,
) -> int:
    """Five products against two forward (FlashAttention-2, arXiv 2307.08691, section 4)."""
    return _attention_flops(query, key, value, causal=causal) * 5 // 2


class MemoryRecorder:
    """Now and at most. `fully_shard` empties storages without freeing them: resizing is watched too."""

    def __init__(self) -> None:
        self.now_bytes = 0
        self.peak_bytes = 0
        self._sizes: dict[int, int] = {}
        self._resize = torch.UntypedStorage.resize_

    def __enter__(self) -> Self:
        know, original = self._know, self._resize

        def resize(storage: torch.UntypedStorage, size: int) -> None:
            original(storage, size)
            know(storage)

        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign,assignment]
        return self

    def __exit__(self, *error: object) -> None:
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]

    def seen(self, operator: Any, args: Arguments, named: Mapping[str, Any], result: object) -> None:  # noqa: ANN401
        for tensor in tensors_of(result):
            self._know(tensor.untyped_storage())

    def restart_peak(self) -> None:
        self.peak_bytes = self.now_bytes

    def _know(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self._sizes:
            weakref.finalize(storage, self._forget, key)
        self.now_bytes += size - self._sizes.get(key, 0)
        self._sizes[key] = size
        self.peak_bytes = max(self.peak_bytes, self.now_bytes)

    def _forget(self, key: int) -> None:
        self.now_bytes -= self._sizes.pop(key, 0)


_RING_PASSES = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}


@dataclass(frozen=True)
class _Message:
    """How an operator is read: its kind, where its group stands and what the whole message is."""

    kind: str
    group_at: int
    whole: Callable[[Arguments, object], object]


def _argument(position: int) -> Callable[[Arguments, object], object]:
    return lambda args, result: args[position]


def _result(args: Arguments, result: object) -> object:
    return result


_MESSAGES = {
    "c10d.allreduce_": _Message("all_reduce", 1, _argument(0)),
    "c10d._allgather_base_": _Message("all_gather", 2, _argument(0)),
    "c10d._reduce_scatter_base_": _Message("reduce_scatter", 2, _argument(1)),
    "c10d.alltoall_base_": _Message("all_to_all", 2, _argument(1)),
    "c10d.send": _Message("send", 1, _argument(0)),
    "_c10d_functional.all_reduce": _Message("all_reduce", 2, _argument(0)),
    "_c10d_functional.all_gather_into_tensor": _Message("all_gather", 2, _result),
    "_c10d_functional.reduce_scatter_tensor": _Message("reduce_scatter", 3, _argument(0)),
    "_c10d_functional.all_to_all_single": _Message("all_to_all", 3, _argument(0)),
}


class TrafficRecorder:
    """Counts by what a group is for; groups of one rank send nothing.

    PyTorch hands out one group for the same ranks, so that an axis inside the layers (functional collectives)
    and data parallelism may share it: each kind of operator has labels of its own.
    """

    def __init__(self, layout: Layout) -> None:
        inside = {"tp": layout.tp, "cp": layout.cp, "ep": layout.ep}
        outside = {"tp": layout.tp, "pp": layout.pp}
        self._labels = {
            "_c10d_functional": {axis.name: label for label, axis in inside.items()},
            "c10d": _data_labels(layout)
            | {axis.name: label for label, axis in outside.items() if axis.group},
        }
        self._counts: Counter[str] = Counter()

    def seen(self, operator: Any, args: Arguments, named: Mapping[str, Any], result: object) -> None:  # noqa: ANN401
        message = _MESSAGES.get(str(operator._overloadpacket))
        if message is None:
            return
        group = _group(args[message.group_at])
        if group.size() == 1:
            return
        label = self._labels[operator.namespace].get(group.group_name, "other")
        sent = sum(tensor.nbytes for tensor in tensors_of(message.whole(args, result)))
        self._add(label, message.kind, sent, group.size())

    def figures(self) -> Figures:
        return dict(self._counts)

    def _add(self, label: str, kind: str, sent_bytes: int, ranks: int) -> None:
        wire = sent_bytes if kind == "send" else _RING_PASSES[kind] * sent_bytes * (ranks - 1) / ranks
        for what, amount in (("messages", 1), ("bytes", sent_bytes), ("wire_bytes", wire)):
            self._counts[f"traffic.{label}.{kind}.{what}"] += amount  # type: ignore[assignment] # a float sum


def _data_labels(layout: Layout) -> dict[str, str]:
    meshes = {"dp": layout.dense, "expert": layout.routed}
    return {
        mesh.get_group(part).group_name: f"{label}_{part}"
        for label, mesh in meshes.items()
        if mesh is not None
        for part in ("replicate", "shard")
    }


def _group(handle: Any) -> ProcessGroup:  # noqa: ANN401 - a name, or a boxed group
    return (
        _resolve_process_group(GroupName(handle)) if isinstance(handle, str) else ProcessGroup.unbox(handle)
    )
