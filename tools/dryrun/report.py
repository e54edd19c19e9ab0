"""A plan's dry run beside the cost model: FLOPs, bytes on the wire by axis, memory of the fullest rank."""

import time
from dataclasses import asdict, dataclass

from tools.dryrun.expected import Expected, expected
from tools.dryrun.figures import AXES, Figures, axis_wire_bytes, traffic_of
from tools.dryrun.probes import Stages, run_stages
from tools.errors import InputError
from tools.scenario import Plan, Scenario
from tools.trainer.refusals import checked_plan

MAX_RANKS = 1024


@dataclass(frozen=True)
class Compared:
    """One figure of the program and of the cost model; no ratio where the cost model says zero."""

    program: float
    cost_model: float

    @property
    def ratio(self) -> float | None:
        return self.program / self.cost_model if self.cost_model else None

    def as_json(self) -> dict[str, float | None]:
        return {"program": self.program, "cost_model": self.cost_model, "ratio": self.ratio}


@dataclass(frozen=True)
class DryRun:
    """Memory and traffic are of the rank that has most of them, FLOPs of all ranks together."""

    scenario: Scenario
    plan: Plan
    stages: Stages
    flops: Compared
    wire_bytes: dict[str, Compared]
    memory_bytes: dict[str, Compared]
    fullest_stage: int
    took_s: float

    def as_json(self) -> dict[str, object]:
        return {
            "id": self.scenario.id,
            "plan": self.plan.model_dump(mode="json"),
            "world_size": self.scenario.cluster.num_devices,
            "stages_run": self.stages.stages_run,
            "extrapolated_layers": self.stages.extrapolated_layers,
            "extrapolated_micro_batches": self.stages.extrapolated_micro_batches,
            "took_s": self.took_s,
            "flops": self.flops.as_json(),
            "wire_bytes": {axis: figure.as_json() for axis, figure in self.wire_bytes.items()},
            "memory_bytes": {part: figure.as_json() for part, figure in self.memory_bytes.items()},
            "fullest_stage": self.fullest_stage,
            "collectives": [
                {"stage": stage, **asdict(row)}
                for stage in self.stages.stages_run
                for row in traffic_of(self.stages.figures[stage])
            ],
        }


def dry_run(scenario: Scenario) -> DryRun:
    """Runs the plan's program without devices; raises InputError for what the trainer does not run."""
    if scenario.cluster.num_devices > MAX_RANKS:
        allowed = f"a dry run plays at most {MAX_RANKS} ranks"
        raise InputError("cluster.num_devices", scenario.cluster.num_devices, allowed)
    start_s = time.perf_counter()
    cost = expected(scenario)
    plan = checked_plan(scenario, cost.recompute)
    ran = run_stages(scenario, plan)
    return _compared(scenario, plan, ran, cost, time.perf_counter() - start_s)


def _compared(scenario: Scenario, plan: Plan, ran: Stages, cost: Expected, took_s: float) -> DryRun:
    ranks = plan.tp * plan.cp * plan.dp
    fullest = max(range(plan.pp), key=lambda stage: ran.figures[stage]["memory.peak"])
    memory = _memory(ran.figures[fullest])
    return DryRun(
        scenario=scenario,
        plan=plan,
        stages=ran,
        flops=Compared(ranks * sum(figures["flops"] for figures in ran.figures), cost.flops),
        wire_bytes={
            axis: Compared(
                max(axis_wire_bytes(figures, axis) for figures in ran.figures), cost.wire_bytes[axis]
            )
            for axis in AXES
        },
        memory_bytes={part: Compared(memory[part], cost.memory_bytes[part]) for part in memory},
        fullest_stage=fullest,
        took_s=took_s,
    )


def _memory(figures: Figures) -> dict[str, float]:
    state = {part: figures[f"memory.{part}"] for part in ("parameters", "gradients", "optimizer")}
    peak = figures["memory.peak"]
    return {**state, "activations_and_buffers": peak - sum(state.values()), "peak": peak}
