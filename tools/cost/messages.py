"""The messages that a plan sends, one of each kind, as the cost model sees them: for drawing and for reading.

Sizes and seconds are those of traffic.py, before anything is hidden; nothing here adds to a prediction. Bus
bandwidth is defined as in nccl-tests (doc/PERFORMANCE.md), so that it compares with a link.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tools.cost.calibration import Calibration, shipped_calibration
from tools.cost.coefficients import Coefficients, resolve
from tools.cost.collectives import (
    Group,
    all_reduce_s,
    all_to_all_s,
    gather_s,
    neighbour_s,
    place,
    slice_devices,
)
from tools.cost.encode import encode
from tools.cost.inputs import Array, Inputs
from tools.cost.sizes import dense_shards, expert_ranks, expert_shards, layer_parameters, stages
from tools.cost.traffic import ring_block_bytes, tensor_pair_s
from tools.scenario import Scenario


@dataclass(frozen=True)
class Message:
    axis: str
    """The degree of the plan that sends it."""
    kind: str
    group_size: int
    crosses_nodes: bool
    message_bytes: float
    seconds: float

    @property
    def bus_bytes_per_s(self) -> float:
        n = self.group_size
        factor = {"all_reduce": 2.0 * (n - 1) / n, "send_recv": 1.0}.get(self.kind, (n - 1) / n)
        return self.message_bytes * factor / self.seconds


def list_messages(scenario: Scenario, calibration: Calibration | None = None) -> list[Message]:
    """Of a scenario with a plan; a degree of one sends nothing."""
    x, keys = encode([scenario])
    c = resolve(keys, (calibration or shipped_calibration()).shifts)
    return [one for one in (*_model_parallel(x, c), *_data_parallel(x, c)) if one.group_size > 1]


def _model_parallel(x: Inputs, c: Coefficients) -> Iterator[Message]:
    one = np.ones(())
    hidden_bytes = x.tokens * x.hidden * x.value_bytes
    tensor = place(x, x.tp, one)
    yield _message("tp", "all_reduce", tensor, hidden_bytes, tensor_pair_s(x, c))
    ring, block_bytes = place(x, x.cp, x.tp), ring_block_bytes(x)
    yield _message("cp", "send_recv", ring, block_bytes, neighbour_s(x, c, ring, block_bytes))
    pipeline = place(x, x.pp, x.tp * x.cp * x.dp)
    stage_bytes = hidden_bytes / x.norm_shards
    yield _message("pp", "send_recv", pipeline, stage_bytes, neighbour_s(x, c, pipeline, stage_bytes))
    if x.is_moe:
        experts = place(x, x.ep, x.etp)
        sent = x.tokens / x.tp * x.experts_per_token * x.hidden * x.value_bytes
        seconds = all_to_all_s(x, c, experts, sent, x.experts_per_token)
        yield _message("ep", "all_to_all", experts, sent, seconds)


def _data_parallel(x: Inputs, c: Coefficients) -> Iterator[Message]:
    dense, expert = layer_parameters(x, stages(x).moe_share)
    yield from _sharded(x, c, "dp", dense, x.dp * x.cp, x.tp, dense_shards(x))
    if x.is_moe:
        yield from _sharded(x, c, "dp of experts", expert, expert_ranks(x), x.ep * x.etp, expert_shards(x))


def _sharded(
    x: Inputs, c: Coefficients, axis: str, parameters: Array, ranks: Array, stride: Array, shards: Array
) -> Iterator[Message]:
    """A layer's parameters gathered (gradients scattered) over the shards, then reduced over the replicas."""
    layer_bytes, domain = parameters * x.value_bytes, slice_devices(x)
    group = place(x, shards, stride, domain)
    yield _message(axis, "all_gather", group, layer_bytes, gather_s(x, c, group, layer_bytes))
    replicas = place(x, ranks / shards, stride * shards, domain)
    left = layer_bytes / shards
    yield _message(axis, "all_reduce", replicas, left, all_reduce_s(x, c, replicas, left))


def _message(axis: str, kind: str, group: Group, message_bytes: Array, seconds: Array) -> Message:
    return Message(
        axis, kind, round(float(group.size)), float(group.outside) > 1.0, float(message_bytes), float(seconds)
    )
