"""A workload as playbooks see it: flat facts that their conditions name, and their plan changes applied to a
real plan.

Shares are of the predicted step; facts about a profile exist only if traces were given.
"""

from collections.abc import Mapping, Sequence

from tools.cost.encode import encode
from tools.cost.predict import Prediction
from tools.cost.sizes import total_parameters
from tools.kb import Playbook
from tools.recommend.report import Evidence, PlanFields, PlanValue
from tools.recommend.workload import Workload
from tools.scenario import Plan, Scenario
from tools.trace.report import Profile

FactValue = str | int | float | bool | None
Facts = dict[str, FactValue]
"""By the names of `tools.kb.conditions`."""
LOW_PRECISION = ("fp8", "mxfp8")


def situation(
    workload: Workload, plan: Plan, prediction: Prediction, profile: Profile | None = None
) -> Facts:
    x, _ = encode([workload.with_plan(plan)])
    return {
        **_workload(workload),
        "parameters_b": float(total_parameters(x)) / 1e9,
        **_plan(workload, plan, float(x.scale_up_size)),
        **_prediction(workload, prediction),
        **(_profile(profile) if profile else {"profiled": False}),
    }


def _workload(workload: Workload) -> Facts:
    m, c, t = workload.scenario.model, workload.scenario.cluster, workload.scenario.training
    device = workload.device
    return {
        "architecture": "moe" if m.is_moe else "dense",
        "layers": m.num_hidden_layers,
        "hidden_size": m.hidden_size,
        "kv_heads": m.num_key_value_heads,
        "num_experts": m.num_experts,
        "experts_per_token": m.num_experts_per_tok,
        "sliding_window": m.sliding_window > 0,
        "vendor": device.vendor,
        "device": c.device,
        "num_devices": c.num_devices,
        "devices_per_node": c.devices_per_node,
        "nodes": -(-c.num_devices // c.devices_per_node),
        "oversubscription": c.topology.oversubscription if c.topology else 1.0,
        "fp8_capable": any(device.peak_flops.get(name, 0.0) > 0 for name in LOW_PRECISION),
        "memory_gib": workload.capacity_gib,
        "framework": t.framework,
        "precision": t.precision,
        "seq_len": t.seq_len,
        "global_batch_size": t.global_batch_size,
        "flash_attention": t.flash_attention,
    }


def _plan(workload: Workload, plan: Plan, domain: float) -> Facts:
    """`domain` counts the devices that fast links join."""
    s = workload.scenario
    inner = plan.tp * plan.cp
    return {
        **plan.model_dump(exclude_none=True, exclude={"recompute_modules"}),  # a list: no condition names it
        "micro_batches": s.training.global_batch_size / (plan.dp * plan.micro_batch_size),
        "tp_spans_nodes": plan.tp > domain,
        "cp_spans_nodes": plan.cp > 1 and inner > domain,
        "ep_spans_nodes": plan.ep > 1 and plan.ep * plan.etp > domain,
        "dp_shard_spans_nodes": plan.dp_shard > 1 and plan.tp * plan.dp_shard > domain,
        "heads_per_tp": s.model.num_attention_heads / plan.tp,
        "tokens_per_micro_batch": plan.micro_batch_size * s.training.seq_len / plan.cp,
    }


def _prediction(workload: Workload, prediction: Prediction) -> Facts:
    whole = prediction.step_time_s
    return {
        "fits": prediction.fits,
        "bottleneck": prediction.bottleneck,
        "mfu": prediction.mfu,
        "memory_fraction": prediction.peak_memory_gib / workload.capacity_gib,
        "activation_fraction": prediction.memory_gib["activations"] / workload.capacity_gib,
        **{f"share.{term}": part / whole for term, part in prediction.breakdown_s.items()},
    }


def _profile(profile: Profile) -> Facts:
    total, stragglers = profile.total, profile.stragglers
    whole = total.total_us or 1.0
    return {
        "profiled": True,
        "profile.bottleneck": profile.diagnosis.bottleneck,
        "profile.exposed_communication_ratio": total.exposed_communication_us / whole,
        "profile.idle_ratio": total.idle_us / whole,
        "profile.memory_ratio": total.memory_us / whole,
        "profile.overlap_ratio": total.overlap_ratio,
        "profile.straggler": bool(stragglers),
        "profile.straggler_cause": stragglers[0].cause if stragglers else "none",
    }


ALL_DATA_RANKS = "all_data_ranks"
MODEL_PARALLEL = ("tp", "pp", "cp")


def resolve_moves(moves: Sequence[PlanFields], plan: Plan, scenario: Scenario) -> list[PlanFields]:
    """Values such as "x2" or "devices_per_node" become figures of this plan; odd halves are left out."""
    resolved = (_resolve(move, plan, scenario) for move in moves)
    return [fields for fields in resolved if fields is not None]


def _resolve(move: PlanFields, plan: Plan, scenario: Scenario) -> PlanFields | None:
    devices = {
        "devices_per_node": scenario.cluster.devices_per_node,
        "num_devices": scenario.cluster.num_devices,
    }
    fields: PlanFields = {}
    for name, value in move.items():
        if value == ALL_DATA_RANKS:
            continue
        fields[name] = _figure(value, getattr(plan, name), devices)
        if fields[name] is None:
            return None
    # How many data ranks there are depends on the degrees that the move changes, so they come first.
    ranks = _data_ranks(fields, plan, scenario)
    if ALL_DATA_RANKS in move.values() and ranks is None:
        return None
    return {name: ranks if value == ALL_DATA_RANKS else fields[name] for name, value in move.items()}


def _data_ranks(fields: PlanFields, plan: Plan, scenario: Scenario) -> int | None:
    """dp * cp of the changed plan; None if its other degrees do not divide the devices."""
    tp, pp, cp = (int(fields.get(name) or getattr(plan, name)) for name in MODEL_PARALLEL)
    if "dp" in fields:
        return int(fields["dp"] or 1) * cp
    ranks, left = divmod(scenario.cluster.num_devices, tp * pp * cp)
    return None if left else ranks * cp


def _figure(value: PlanValue, now: PlanValue, devices: Mapping[str, int]) -> PlanValue:
    if not isinstance(value, str):
        return value
    if value in devices:
        return devices[value]
    if isinstance(now, int) and value.startswith(("x", "/")) and value[1:].isdigit():
        factor = int(value[1:])
        return now * factor if value[0] == "x" else now // factor if now % factor == 0 else None
    return value


def agrees(fields: PlanFields, before: Plan, after: Plan) -> bool:
    """Whether a proposal goes where the move points: each field of the move changes in its direction."""
    return bool(fields) and all(
        _same_direction(getattr(before, name), wanted, getattr(after, name))
        for name, wanted in fields.items()
    )


def _same_direction(before: PlanValue, wanted: PlanValue, after: PlanValue) -> bool:
    if after == wanted:
        return before != wanted
    numbers = [v for v in (before, wanted, after) if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) < 3:
        return False
    start, goal, end = numbers
    return (goal - start) * (end - start) > 0


def supporting(
    playbooks: Sequence[Playbook], before: Plan, after: Plan, scenario: Scenario
) -> list[Evidence]:
    """Evidence for a proposal: the playbooks whose moves it makes."""
    return [
        Evidence(kind="knowledge", ref=book.id, says=f"{book.title}: {book.effect}")
        for book in playbooks
        if any(agrees(fields, before, after) for fields in resolve_moves(book.moves, before, scenario))
    ]
