"""What is trained on the testbed, and under which plans: every legal one within the limits here.

The limits keep the spaces small enough to measure every plan. The default that others are compared with is
FSDP over all ranks, what people get without thinking about the network.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from testbed.plan import checked_plan
from tools.errors import InputError
from tools.scenario import Plan, Scenario, parse_scenario
from tools.search.constraints import Constraints, parse_constraints
from tools.search.space import PlanSpace

HOSTS, RANKS, MBIT = 2, 4, 200
CLUSTER = {"device": "cpu", "num_devices": RANKS, "devices_per_node": RANKS // HOSTS}
LINK = {"inter_node_gbps_per_device": MBIT / 1000 / (RANKS // HOSTS)}
"""A rank's share of its host's link."""
PLAIN = {"vpp": 1, "etp": 1, "schedule": "1f1b", "recompute": "none"}
FSDP_EVERYWHERE = {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "dp": 4, "dp_shard": 4, "zero_stage": 3}


@dataclass(frozen=True)
class Workload:
    name: str
    model: Mapping[str, Any]
    seq_len: int
    global_batch_size: int
    limits: Mapping[str, Any]
    machine: Mapping[str, Any] = field(default_factory=dict)
    """Figures of this machine in place of the catalogue's (see machine.py)."""

    @property
    def request(self) -> dict[str, Any]:
        """The body of `asap optimize`: the workload under the default plan, and the limits."""
        training = {
            "seq_len": self.seq_len,
            "global_batch_size": self.global_batch_size,
            "precision": "fp32",
            "framework": "torch-fsdp2",
        }
        plan = {**FSDP_EVERYWHERE, "micro_batch_size": self.global_batch_size // 4}
        return {
            "model": {"name": self.name, **self.model},
            "cluster": {**CLUSTER, "overrides": {**LINK, **self.machine}},
            "training": training,
            "plan": plan,
            "constraints": {"space": "all", **PLAIN, **self.limits},
        }

    @property
    def scenario(self) -> Scenario:
        """With the default plan."""
        parts = {name: part for name, part in self.request.items() if name != "constraints"}
        return parse_scenario(parts)

    @property
    def default_plan(self) -> Plan:
        """FSDP over all ranks, with nothing left open."""
        plan = self.scenario.plan
        assert plan is not None
        return plan.model_copy(update={"recompute": "none"})

    @property
    def constraints(self) -> Constraints:
        return parse_constraints(self.request["constraints"], self.scenario.plan)

    def plans(self) -> list[Plan]:
        """Every plan that is legal, within the limits, and that the reference trainer runs."""
        space = PlanSpace(self.scenario, self.constraints)
        grown = space.with_experts(space.with_pipeline(space.degrees()))
        table = space.with_sharding(space.with_micro_batch(grown))
        table["recompute"] = np.zeros_like(table["tp"])
        rows = (table.plan(row) for row in range(table.rows))
        return [plan for plan in rows if self._runs(plan)]

    def _runs(self, plan: Plan) -> bool:
        try:
            checked_plan(self.scenario.model_copy(update={"plan": plan}))
        except InputError:
            return False
        return True


LLAMA = {"num_attention_heads": 8, "num_key_value_heads": 4}
WORKLOADS = (
    Workload(
        "dense-7m",
        {**LLAMA, "num_hidden_layers": 6, "hidden_size": 256, "intermediate_size": 768, "vocab_size": 4096},
        seq_len=64,
        global_batch_size=8,
        limits={"sequence_parallel": False, "cp": [1, 2], "zero_stage": [0, 3], "micro_batch_size": [2, 4]},
    ),
    Workload(
        "long-4m",
        {**LLAMA, "num_hidden_layers": 4, "hidden_size": 192, "intermediate_size": 512, "vocab_size": 6144},
        seq_len=512,
        global_batch_size=4,
        limits={"sequence_parallel": False, "zero_stage": [0, 3], "micro_batch_size": [1, 2]},
    ),
    Workload(
        "moe-8m",
        {
            **LLAMA,
            "num_hidden_layers": 4,
            "hidden_size": 256,
            "intermediate_size": 768,
            "vocab_size": 2048,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 256,
        },
        seq_len=64,
        global_batch_size=8,
        limits={"tp": 1, "cp": 1, "zero_stage": [0, 3], "micro_batch_size": [1, 2]},
    ),
)


def plan_name(plan: Plan) -> str:
    """Short, and different for plans that differ within the limits."""
    shown = (
        ("tp", plan.tp),
        ("pp", plan.pp),
        ("cp", plan.cp),
        ("ep", plan.ep),
        ("dp", plan.dp),
        ("z", plan.zero_stage),
        ("shard", plan.dp_shard),
    )
    degrees = [f"{name}{value}" for name, value in shown if value > 1]
    return "-".join([*degrees, f"mb{plan.micro_batch_size}"])
