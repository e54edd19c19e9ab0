"""Collectives of one rank: messages, bytes, and bytes on its wire.

Bytes on the wire are those of ring algorithms (nccl-tests, PERFORMANCE.md), for a pipeline what is sent.
gloo's reduce-scatter moves an all-reduce's bytes, which is not counted here.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch._C._distributed_c10d import ProcessGroup, _resolve_process_group
from torch.distributed.distributed_c10d import GroupName

from tools.dryrun.figures import Figures
from tools.dryrun.watching import Arguments, tensors_of
from tools.trainer.layout import Layout

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


def _group(given: Any) -> ProcessGroup:  # noqa: ANN401 - a name, or a boxed group
    return _resolve_process_group(GroupName(given)) if isinstance(given, str) else ProcessGroup.unbox(given)
