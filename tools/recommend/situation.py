"""A workload as playbooks see it: flat facts that their conditions name, and their plan changes applied to a
real plan.

Shares are of the predicted step; facts about a profile exist only if traces were given.
"""

import math
from collections.abc import Sequence

from tools.kb import Playbook
from tools.model.predict import Prediction
from tools.physics.encode import encode
from tools.physics.sizes import total_parameters
from tools.recommend.report import Evidence, PlanFields
from tools.recommend.workload import Workload
from tools.scenario import Plan, Scenario
from tools.scenario.spec import MODEL_AXES, PlanValue
from tools.trace.report import Profile

FactValue = str | int | float | bool | None
Facts = dict[str, FactValue]
"""By the names of `tools.kb.conditions`."""
LOW_PRECISION = ("fp8", "mxfp8")
ALL_DATA_RANKS = "all_data_ranks"


def situation(
    workload: Workload, plan: Plan, prediction: Prediction, profile: Profile | None = None
) -> Facts:
    m, c, t = workload.scenario.model, workload.scenario.cluster, workload.scenario.training
    device, capacity_gib, step_s = workload.device, workload.capacity_gib, prediction.step_time_s
    x, _ = encode([workload.with_plan(plan)])
    domain = float(x.scale_up_size)  # devices that fast links join
    facts: Facts = {
        "architecture": workload.kind,
        "layers": m.num_hidden_layers,
        "hidden_size": m.hidden_size,
        "kv_heads": m.num_key_value_heads,
        "num_experts": m.num_experts,
        "experts_per_token": m.num_experts_per_tok,
        "sliding_window": m.sliding_window > 0,
        "parameters_b": float(total_parameters(x)) / 1e9,
        "vendor": device.vendor,
        "device": c.device,
        "num_devices": c.num_devices,
        "devices_per_node": c.devices_per_node,
        "nodes": -(-c.num_devices // c.devices_per_node),
        "oversubscription": c.topology.oversubscription if c.topology else 1.0,
        "fp8_capable": any(device.peak_flops.get(name, 0.0) > 0 for name in LOW_PRECISION),
        "memory_gib": capacity_gib,
        "framework": t.framework,
        "precision": t.precision,
        "seq_len": t.seq_len,
        "global_batch_size": t.global_batch_size,
        "flash_attention": t.flash_attention,
        **plan.model_dump(exclude_none=True, exclude={"recompute_modules"}),  # a list: no condition names it
        "micro_batches": t.global_batch_size / (plan.dp * plan.micro_batch_size),
        "tp_spans_nodes": plan.tp > domain,
        "cp_spans_nodes": plan.cp > 1 and plan.tp * plan.cp > domain,
        "ep_spans_nodes": plan.ep > 1 and plan.ep * plan.etp > domain,
        "dp_shard_spans_nodes": plan.dp_shard > 1 and plan.tp * plan.dp_shard > domain,
        "heads_per_tp": m.num_attention_heads / plan.tp,
        "tokens_per_micro_batch": plan.micro_batch_size * t.seq_len / plan.cp,
        "fits": prediction.fits,
        "bottleneck": prediction.bottleneck,
        "mfu": prediction.mfu,
        "memory_fraction": prediction.peak_memory_gib / capacity_gib,
        "activation_fraction": prediction.memory_gib["activations"] / capacity_gib,
        **{f"share.{term}": part / step_s for term, part in prediction.breakdown_s.items()},
        "profiled": profile is not None,
    }
    if profile:
        total, stragglers = profile.total, profile.stragglers
        whole = total.total_us or 1.0
        facts |= {
            "profile.bottleneck": profile.diagnosis.bottleneck,
            "profile.exposed_communication_ratio": total.exposed_communication_us / whole,
            "profile.idle_ratio": total.idle_us / whole,
            "profile.memory_ratio": total.memory_us / whole,
            "profile.overlap_ratio": total.overlap_ratio,
            "profile.straggler": bool(stragglers),
            "profile.straggler_cause": stragglers[0].cause if stragglers else "none",
        }
    return facts


def resolve_moves(moves: Sequence[PlanFields], plan: Plan, scenario: Scenario) -> list[PlanFields]:
    """Values such as "x2" or "devices_per_node" become figures of this plan; odd halves are left out."""
    resolved = (_resolve(move, plan, scenario) for move in moves)
    return [fields for fields in resolved if fields is not None]


def _resolve(move: PlanFields, plan: Plan, scenario: Scenario) -> PlanFields | None:
    cluster, fields = scenario.cluster, PlanFields()
    for name, value in move.items():
        now = getattr(plan, name)
        if value == ALL_DATA_RANKS:
            continue
        if value in ("devices_per_node", "num_devices"):
            value = getattr(cluster, str(value))
        elif isinstance(value, str) and value[:1] in ("x", "/") and value[1:].isdigit():
            factor = int(value[1:])
            value = now * factor if value[0] == "x" else now // factor if now % factor == 0 else None
        if value is None:
            return None
        fields[name] = value
    if ALL_DATA_RANKS not in move.values():
        return fields
    # How many data ranks (dp * cp) there are depends on the degrees that the move changes, so they come last.
    sizes = {name: int(fields.get(name) or getattr(plan, name)) for name in MODEL_AXES}
    dp, left = divmod(cluster.num_devices, math.prod(sizes.values()))
    if "dp" in fields:
        dp, left = int(fields["dp"] or 1), 0
    return None if left else {name: fields.get(name, dp * sizes["cp"]) for name in move}


def agrees(fields: PlanFields, before: Plan, after: Plan) -> bool:
    """Whether a proposal goes where the move points: each field of the move changes in its direction."""

    def points_alike(start: PlanValue, goal: PlanValue, end: PlanValue) -> bool:
        if end == goal:
            return start != goal
        if not all(isinstance(value, int) and not isinstance(value, bool) for value in (start, goal, end)):
            return False
        return (int(goal or 0) - int(start or 0)) * (int(end or 0) - int(start or 0)) > 0

    return bool(fields) and all(
        points_alike(getattr(before, name), wanted, getattr(after, name)) for name, wanted in fields.items()
    )


def supporting(
    playbooks: Sequence[Playbook], before: Plan, after: Plan, scenario: Scenario
) -> list[Evidence]:
    """Evidence for a proposal: the playbooks whose moves it makes."""
    return [
        Evidence(kind="knowledge", ref=book.id, says=f"{book.title}: {book.effect}")
        for book in playbooks
        if any(agrees(fields, before, after) for fields in resolve_moves(book.moves, before, scenario))
    ]
