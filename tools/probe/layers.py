"""Many nodes predicted from one: a few layers of a plan's model on at most one node, scaled to the whole
plan.

The samples keep what a rank computes (tensor, context and expert degrees, micro-batch, recomputation) and
differ in layers and micro-batches, so that time per layer, per micro-batch and per step can be separated.
What a single node does not show (stages, network, schedule) stays the cost model's.
"""

from math import gcd

from tools.errors import InputError
from tools.scenario import ModelSpec, Scenario, parse_scenario

SAMPLES = ((2, 1), (4, 1), (2, 2))
"""Layers and micro-batches of each."""


def samples_of(scenario: Scenario) -> list[Scenario]:
    """Three short jobs on at most one node; raises InputError if the plan has no part that fits there."""
    plan, cluster, model = scenario.plan, scenario.cluster, scenario.model
    if plan is None:
        raise InputError("plan", None, "the plan whose layers are measured is needed")
    devices = min(cluster.num_devices, cluster.devices_per_node)
    # The plan's degrees inside one node: what is wider is narrowed to a divisor, so that groups lie as the
    # plan's do, and stages become one.
    tp = gcd(plan.tp, devices)
    cp = gcd(plan.cp, devices // tp)
    dp = devices // (tp * cp)
    small = plan.model_copy(
        update={
            "tp": tp,
            "cp": cp,
            "dp": dp,
            "pp": 1,
            "vpp": 1,
            "ep": gcd(plan.ep, devices),
            "etp": gcd(plan.etp, tp),
            "dp_shard": gcd(plan.dp_shard, dp * cp),
            "schedule": "1f1b",
            "sequence_parallel": plan.sequence_parallel and tp > 1,
            "recompute_layers": None,
        }
    )
    samples = []
    for layers, batches in SAMPLES:
        batch = {"global_batch_size": plan.micro_batch_size * dp * batches}
        parts = {
            "cluster": cluster.model_copy(update={"num_devices": devices}),
            "training": scenario.training.model_copy(update=batch),
            "plan": small,
            "model": _with_layers(model, min(layers, model.num_hidden_layers)),
        }
        described = scenario.model_copy(update=parts).model_dump(mode="json", exclude_none=True)
        samples.append(parse_scenario(described))  # again, so that what is no legal plan is refused by name
    return samples


def _with_layers(model: ModelSpec, layers: int) -> ModelSpec:
    """Fewer layers, dense and expert ones among them if the model has both."""
    changed: dict[str, object] = {"num_hidden_layers": layers}
    if model.first_k_dense_replace:
        changed["first_k_dense_replace"] = min(model.first_k_dense_replace, layers // 2)
    for name in ("moe_layer_freq", "layer_types", "ffn_types"):
        pattern = getattr(model, name, None)
        if isinstance(pattern, tuple | list) and pattern:
            kept = [pattern[i * len(pattern) // layers] for i in range(layers)]
            changed[name] = type(pattern)(kept)
    return model.model_copy(update=changed)
