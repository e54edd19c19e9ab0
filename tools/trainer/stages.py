"""Which layers stand on which pipeline stage. Needs no torch."""

from collections.abc import Mapping
from dataclasses import dataclass

from tools.scenario import ModelSpec, Plan


@dataclass(frozen=True)
class ChunkSpec:
    """A part of the model; `layers` says of each layer number whether it has experts."""

    layers: Mapping[int, bool]
    is_first: bool
    is_last: bool


def chunk_specs(model: ModelSpec, plan: Plan) -> list[ChunkSpec]:
    """All chunks in order, as even as the layers allow; chunk i stands on stage i modulo pp."""
    chunks = plan.pp * plan.vpp
    base, longer = divmod(model.num_hidden_layers, chunks)
    specs, start = [], 0
    for i in range(chunks):
        stop = start + base + (i < longer)
        layers = {layer: model.is_moe_layer(layer) for layer in range(start, stop)}
        specs.append(ChunkSpec(layers, is_first=i == 0, is_last=i == chunks - 1))
        start = stop
    return specs


def is_sharded(plan: Plan) -> bool:
    """Whether `fully_shard` runs: ZeRO over more than one rank."""
    return plan.zero_stage >= 2 and plan.dp_shard > 1


def expert_shards(plan: Plan) -> int:
    """Over how many of its copies ZeRO divides an expert: the copies of one dense shard group."""
    return max(plan.dp_shard * plan.tp // plan.ep, 1) if is_sharded(plan) else 1


def has_own_expert_mesh(model: ModelSpec, plan: Plan) -> bool:
    """Whether experts have other replicas than the dense parameters."""
    return model.is_moe and (plan.ep > 1 or plan.tp > 1)
