"""What a plan or a cluster leaves open, filled from the framework's and the device's own defaults.

`recompute` stays None when not stated: the cost model takes none where that fits, else selective, else full.
"""

from typing import Any

from pydantic import Field

from tools.scenario.fields import Integer, Record
from tools.scenario.frameworks import get_framework
from tools.scenario.spec import MAX_BATCH, MAX_DEVICES, MAX_LAYERS, MAX_NAME, Plan, Recompute, Schedule


class StatedPlan(Record):
    """A plan as written: null or absent where the source did not say."""

    tp: Integer = Field(ge=1, le=MAX_DEVICES)
    pp: Integer = Field(ge=1, le=MAX_DEVICES)
    cp: Integer = Field(ge=1, le=MAX_DEVICES)
    dp: Integer = Field(ge=1, le=MAX_DEVICES)
    ep: Integer = Field(ge=1, le=MAX_DEVICES)
    dp_shard: Integer = Field(ge=1, le=MAX_DEVICES)
    zero_stage: Integer = Field(ge=0, le=3)
    micro_batch_size: Integer = Field(ge=1, le=MAX_BATCH)
    vpp: Integer | None = Field(None, ge=1, le=MAX_LAYERS)
    etp: Integer | None = Field(None, ge=1, le=MAX_DEVICES)
    sequence_parallel: bool | None = None
    recompute: Recompute | None = None
    schedule: Schedule | None = None
    zero_stage_known: bool | None = None


class StatedCluster(Record):
    """A cluster as written; the node size may be left to the device."""

    name: str | None = Field(None, min_length=1, max_length=MAX_NAME)
    device: str = Field(min_length=1, max_length=100)
    num_devices: Integer = Field(ge=1, le=MAX_DEVICES)
    devices_per_node: Integer | None = Field(None, ge=1, le=MAX_DEVICES)
    overrides: dict[str, Any] | None = None
    topology: dict[str, Any] | None = None


def resolve_defaults(stated: StatedPlan, framework: str, num_hidden_layers: int) -> Plan:
    """The plan that would really run: nulls replaced by what the framework does by default."""
    data = get_framework(framework)
    deepest = max(num_hidden_layers // stated.pp, 1) if stated.pp > 1 else 1
    vpp = stated.vpp or data.vpp or deepest
    usual = data.schedule_interleaved if vpp > 1 else data.schedule
    wanted = data.sequence_parallel if stated.sequence_parallel is None else stated.sequence_parallel
    filled = {
        "vpp": vpp,
        "etp": stated.etp or data.etp,
        # One stage has no schedule, and one tensor rank nothing to split a sequence over.
        "schedule": stated.schedule if stated.schedule and stated.pp > 1 else usual,
        "sequence_parallel": wanted and stated.tp > 1,
    }
    return Plan.model_validate(stated.model_dump(exclude={"zero_stage_known"}) | filled)
