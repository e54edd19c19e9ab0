"""The three published ASAP cases as meshes: does the search move in the direction that was reported?

    python -m benchmarks.asap_cases

Published are the chips, the mesh before and after, and what bound the job; the models are not, so each case
says which one stands in and why. Axes of a mesh: model = tp, data = dp, seq = cp; the data axis shards state
as MaxText's fsdp axis does, unless the mesh is "none". The search may use any mesh without a pipeline. The
direction is found where the published mesh is predicted faster than the one before it (or fits where that
does not), and where one of ours moves every axis that the published one moves to the same side, or leaves it
(never the other way); from "none", where ours shards the state that was replicated.
"""

import argparse
import math
from typing import Any, NamedTuple

from tools.model.predict import Prediction
from tools.recommend.optimize import best_plans, workload_of
from tools.recommend.workload import Workload
from tools.scenario import Plan, parse_scenario

LLAMA: dict[str, Any] = {"num_key_value_heads": 8, "vocab_size": 128256}
LLAMA_70B = LLAMA | {
    "name": "Llama 3.1 70B", "num_hidden_layers": 80, "hidden_size": 8192, "intermediate_size": 28672,
    "num_attention_heads": 64, "head_dim": 128,
}  # fmt: skip
LLAMA_8B = LLAMA | {
    "name": "Llama 3.1 8B", "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336,
    "num_attention_heads": 32, "head_dim": 128,
}  # fmt: skip
LLAMA_3B = LLAMA | {
    "name": "Llama 3.2 3B", "num_hidden_layers": 28, "hidden_size": 3072, "intermediate_size": 8192,
    "num_attention_heads": 24, "head_dim": 128, "tie_word_embeddings": True,
}  # fmt: skip


class Mesh(NamedTuple):
    model: int
    data: int
    seq: int
    sharded: bool = True

    def __str__(self) -> str:
        degrees = {"model": self.model, "data": self.data, "seq": self.seq}
        named = [f"{axis}{degree}" for axis, degree in degrees.items() if degree > 1]
        return "·".join(named) if self.sharded else "none"

    @property
    def plan(self) -> dict[str, Any]:
        sharded = {"zero_stage": 3, "dp_shard": self.data * self.seq}
        return {
            "tp": self.model, "pp": 1, "cp": self.seq, "ep": 1, "dp": self.data, "micro_batch_size": 1,
            **(sharded if self.sharded else {"zero_stage": 0, "dp_shard": 1}),
        }  # fmt: skip


class Case(NamedTuple):
    name: str
    bound: str
    device: str
    torus: list[int]
    before: Mesh
    after: Mesh
    model: dict[str, Any]
    seq_len: int
    batch: int
    why: str


CASES = (
    Case(
        "v5p 8x8x8", "compute-bound", "tpu-v5p", [8, 8, 8], Mesh(8, 8, 8), Mesh(8, 16, 4),
        LLAMA_70B, 32768, 64, "a size usual on 512 v5p; the long context of a sequence axis",
    ),
    Case(
        "v6e 4x4", "memory-bound", "tpu-v6e", [4, 4], Mesh(1, 16, 1, False), Mesh(4, 4, 1),
        LLAMA_3B, 8192, 64, "the smallest usual size whose state, with nothing sharded, exceeds 32 GB/chip",
    ),
    Case(
        "v5e 16x16", "communication-bound", "tpu-v5e", [16, 16], Mesh(4, 4, 16), Mesh(2, 8, 16),
        LLAMA_8B, 4096, 64, "a usual size for 16 GB/chip; communication-bound on this mesh",
    ),
)  # fmt: skip
AXES = {"model": "tp", "data": "dp", "seq": "cp"}


def workload(case: Case) -> Workload:
    cluster: dict[str, Any] = {"device": case.device, "num_devices": math.prod(case.torus)}
    training = {
        "seq_len": case.seq_len, "global_batch_size": case.batch, "precision": "bf16", "framework": "maxtext",
    }  # fmt: skip
    raw = {
        "model": case.model,
        "cluster": cluster | {"topology": {"network": "torus", "torus_dimensions": case.torus}},
        "training": training,
        "plan": case.before.plan,
        "constraints": {"pp": 1},
    }
    return workload_of(parse_scenario(raw))


def under(mesh: Mesh) -> Plan:
    """Recomputation is left open: none if that fits, else selective, else full."""
    left_open = {"vpp": 1, "etp": 1, "sequence_parallel": False, "recompute": None, "schedule": "gpipe"}
    return Plan.model_validate(mesh.plan | left_open)


def same_side(case: Case, plan: Plan) -> bool:
    """Every axis that the published mesh moves, ours moves to that side or not at all; one at least moves."""
    if not case.before.sharded:
        return plan.tp > 1 or plan.zero_stage > 0
    moves = []
    for axis, field in AXES.items():
        published = getattr(case.after, axis) - getattr(case.before, axis)
        ours = getattr(plan, field) - getattr(case.before, axis)
        if published:
            moves.append(published * ours)
    return bool(min(moves) >= 0 and max(moves) > 0)


def show(label: str, plan: Plan, prediction: Prediction) -> None:
    degrees = {axis: getattr(plan, field) for axis, field in AXES.items()}
    mesh = "·".join(f"{axis}{degree}" for axis, degree in degrees.items() if degree > 1)
    rest = f"ZeRO {plan.zero_stage} over {plan.dp_shard}, micro-batch {plan.micro_batch_size}"
    fit = "" if prediction.fits else ", DOES NOT FIT"
    memory = f"{prediction.peak_memory_gib:.1f} GiB{fit}"
    figures = f"{prediction.step_time_s:8.3g} s  {memory:26}{prediction.bottleneck:14}"
    print(f"  {label:10}{mesh or 'none':24}{figures}{rest}")


def report(case: Case) -> bool:
    stand_in = workload(case)
    ours = best_plans(stand_in)[0]
    plans = [under(case.before), under(case.after), *ours]
    before, after, *rest = stand_in.predict(plans)
    print(f"\n{case.name} ({case.bound}), {case.before} to {case.after}")
    print(f"  stands in: {case.model['name']}, sequence {case.seq_len:,}, batch {case.batch}: {case.why}")
    show("before", plans[0], before)
    show("published", plans[1], after)
    for rank, (plan, prediction) in enumerate(zip(ours, rest, strict=True), start=1):
        show(f"ours {rank}", plan, prediction)
    faster = before.step_time_s > after.step_time_s or not before.fits
    moved = [rank for rank, plan in enumerate(ours, start=1) if same_side(case, plan)]
    print(f"  published beats the mesh before (in time, or by fitting): {'yes' if faster else 'no'}")
    print(f"  ours that move to the same side: {', '.join(map(str, moved)) or 'none'}")
    return bool(faster and moved)


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    directions = [report(case) for case in CASES]
    print(f"\ndirection found in {sum(directions)} of {len(directions)}")
    print("The models are not published, and these stand-ins were chosen after others: not a blind test.")


if __name__ == "__main__":
    main()
