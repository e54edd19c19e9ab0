"""Many nodes predicted from one: a few layers of a plan's model on at most one node, scaled to the whole
plan.

The samples keep what a rank computes (tensor, context and expert degrees, micro-batch, recomputation) and
differ in layers and micro-batches, so that time per layer, per micro-batch and per step can be separated.
What a single node does not show (stages, network, schedule) stays the cost model's.
"""

from tools.errors import InputError
from tools.scenario import ModelSpec, Plan, Scenario, parse_scenario

LAYERS = (2, 4)
MICRO_BATCHES = (1, 2)


def samples_of(scenario: Scenario) -> list[Scenario]:
    """Three short jobs on at most one node; raises InputError if the plan has no part that fits there."""
    plan, cluster = scenario.plan, scenario.cluster
    if plan is None:
        raise InputError("plan", None, "the plan whose layers are measured is needed")
    devices = min(cluster.num_devices, cluster.devices_per_node)
    small = _plan_on(plan, devices)
    few, more = LAYERS
    once, twice = MICRO_BATCHES
    pairs = ((few, once), (more, once), (few, twice))
    return [_sample(scenario, small, devices, layers, batches) for layers, batches in pairs]


def _plan_on(plan: Plan, devices: int) -> Plan:
    """The plan's degrees inside one node: what is wider is narrowed to it, stages become one."""
    tp = _within(plan.tp, devices)
    cp = _within(plan.cp, devices // tp)
    dp = devices // (tp * cp)
    return plan.model_copy(
        update={
            "tp": tp,
            "cp": cp,
            "dp": dp,
            "pp": 1,
            "vpp": 1,
            "ep": _within(plan.ep, devices),
            "etp": _within(plan.etp, tp),
            "dp_shard": _within(plan.dp_shard, dp * cp),
            "schedule": "1f1b",
            "sequence_parallel": plan.sequence_parallel and tp > 1,
            "recompute_layers": None,
        }
    )


def _within(degree: int, room: int) -> int:
    """The largest degree that divides both, so that groups lie as the plan's do."""
    return max(size for size in range(1, degree + 1) if degree % size == 0 and room % size == 0)


def _sample(scenario: Scenario, plan: Plan, devices: int, layers: int, batches: int) -> Scenario:
    training = scenario.training.model_copy(
        update={"global_batch_size": plan.micro_batch_size * plan.dp * batches}
    )
    cluster = scenario.cluster.model_copy(update={"num_devices": devices})
    parts = {"cluster": cluster, "training": training, "plan": plan, "model": _fewer(scenario.model, layers)}
    described = scenario.model_copy(update=parts).model_dump(mode="json", exclude_none=True)
    return parse_scenario(described)  # again, so that what is no legal plan is refused by name


def _fewer(model: ModelSpec, layers: int) -> ModelSpec:
    """With `layers` layers, dense and expert ones among them if the model has both."""
    layers = min(layers, model.num_hidden_layers)
    changed: dict[str, object] = {"num_hidden_layers": layers}
    if model.first_k_dense_replace:
        changed["first_k_dense_replace"] = min(model.first_k_dense_replace, layers // 2)
    for name in ("moe_layer_freq", "layer_types", "ffn_types"):
        pattern = getattr(model, name, None)
        if isinstance(pattern, tuple | list) and pattern:
            kept = [pattern[i * len(pattern) // layers] for i in range(layers)]
            changed[name] = type(pattern)(kept)
    return model.model_copy(update=changed)
