"""Parses JSON into a `Scenario`, or raises one InputError that names the field.

Order of the checks: structure, then types and bounds, then the rules of model, cluster and framework.
"""

import math
from collections.abc import Mapping

from tools.errors import InputError
from tools.hardware import Device, get_device
from tools.scenario.columns import Facts, columns_of
from tools.scenario.fields import NOTHING, JsonObject, build, get_object, refuse_unknown, shown
from tools.scenario.frameworks import StatedCluster, StatedPlan, resolve_defaults
from tools.scenario.huggingface import parse_model
from tools.scenario.model import ModelSpec
from tools.scenario.rules import check_plan
from tools.scenario.spec import (
    MAX_NOTES,
    MAX_PATH,
    ClusterSpec,
    LoraSpec,
    Plan,
    Scenario,
    TopologySpec,
    TrainingSpec,
)
from tools.scenario.vocabulary import TOPOLOGY_SYNONYMS

_MODEL_MARKS = frozenset(("architectures", "model_type", "num_hidden_layers", "hidden_size", "text_config"))


def check_model(model: ModelSpec) -> None:
    """Raises InputError for the first field that contradicts another."""
    _check_layers(model)
    _check_attention(model)
    _check_experts(model)


def _check_layers(model: ModelSpec) -> None:
    """Lists of layers have an entry per layer, and a mixer is described if a layer has it."""
    for name in ("layer_types", "ffn_types"):
        kinds = getattr(model, name)
        if kinds and len(kinds) != model.num_hidden_layers:
            allowed = f"allowed: a list with an entry for each of {model.num_hidden_layers} layers"
            raise InputError(f"model.{name}", shown(kinds), allowed)
    if model.num_mixer_layers and model.mixer is None:
        raise InputError("model.mixer", NOTHING, "allowed: a JSON object, because layer_types names a mixer")
    if any(kind in ("moe", "both") for kind in model.ffn_types) and not model.is_moe:
        raise InputError(
            "model.num_experts", model.num_experts, "allowed: 1 or more, because ffn_types names moe"
        )


def _check_attention(model: ModelSpec) -> None:
    heads, groups = model.num_attention_heads, model.num_key_value_heads
    if heads % groups:
        raise InputError("model.num_key_value_heads", groups, f"must divide the {heads} attention heads")
    if not model.is_mla:
        return
    for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"):
        _require(model, name, "if kv_lora_rank is given (MLA)")


def _check_experts(model: ModelSpec) -> None:
    if model.num_dense_layers:
        _require(model, "intermediate_size", "if a layer has no experts")
    if not model.is_moe:
        return
    _require(model, "moe_intermediate_size", "if num_experts is given")
    _require(model, "num_experts_per_tok", "if num_experts is given")
    if model.num_experts_per_tok > model.num_experts:
        allowed = f"allowed: an integer from 1 to num_experts ({model.num_experts})"
        raise InputError("model.num_experts_per_tok", model.num_experts_per_tok, allowed)
    if not model.num_moe_layers:
        allowed = f"leaves none of the {model.num_hidden_layers} layers with experts"
        raise InputError("model.first_k_dense_replace", model.first_k_dense_replace, allowed)
    _check_groups(model)


def _check_groups(model: ModelSpec) -> None:
    """Node-limited routing: the experts in equal groups, of which a token may use some."""
    if model.n_group and model.num_experts % model.n_group:
        allowed = f"allowed: a number that divides num_experts ({model.num_experts})"
        raise InputError("model.n_group", model.n_group, allowed)
    if model.topk_group > model.n_group:
        allowed = f"allowed: an integer from 0 to n_group ({model.n_group})"
        raise InputError("model.topk_group", model.topk_group, allowed)


def _require(model: ModelSpec, name: str, condition: str) -> None:
    if getattr(model, name) == 0:
        given = 0 if name in model.model_fields_set else NOTHING
        raise InputError(f"model.{name}", given, f"allowed: an integer of 1 or more {condition}")


_PARTS = ("model", "cluster", "training")


def refuse_bare_model(stated: Mapping[str, object]) -> None:
    """Of a scenario: a model's config.json alone says nothing about devices and training."""
    if "model" not in stated and not _MODEL_MARKS.isdisjoint(stated):
        says = (
            "this looks like a model's config.json: put it under `model`, beside `cluster` and `training`, "
            "or run 'asap optimize config.json --devices \"64 x H100\"', which assumes the rest"
        )
        raise InputError("model", NOTHING, says)


def parse_scenario(obj: object, *, need_plan: bool = True) -> Scenario:
    """A legal scenario with every default filled in; raises InputError for the first thing that is wrong."""
    stated = get_object(obj, "scenario")
    refuse_bare_model(stated)
    refuse_unknown(stated, set(Scenario.model_fields), "")
    has_plan = stated.get("plan") is not None
    parts = {name: get_object(stated.get(name), name) for name in ((*_PARTS, "plan") if has_plan else _PARTS)}
    if need_plan and not has_plan:
        raise InputError("plan", NOTHING, "allowed: a JSON object; 'asap optimize' finds one")
    for name, cls in (("cluster", StatedCluster), ("training", TrainingSpec), ("plan", StatedPlan)):
        refuse_unknown(parts.get(name, {}), set(cls.model_fields), f"{name}.")
    return _build_scenario(stated, parts)


def _build_scenario(stated: JsonObject, parts: dict[str, JsonObject]) -> Scenario:
    model = parse_model(parts["model"])
    stated_cluster = build(StatedCluster, parts["cluster"], "cluster.")
    training = _training(parts["training"])
    stated_plan = build(StatedPlan, parts["plan"], "plan.") if "plan" in parts else None
    traces, notes = _text(stated, "traces", MAX_PATH), _text(stated, "notes", MAX_NOTES)
    identity, constraints = _identity(stated.get("id")), stated.get("constraints")
    constraints = {} if constraints is None else get_object(constraints, "constraints")
    check_model(model)
    device = get_device(stated_cluster.device, stated_cluster.overrides or {})
    cluster = _resolve_cluster(stated_cluster, device)
    _check_precision(training, device)
    plan = resolve_defaults(stated_plan, training.framework, model.num_hidden_layers) if stated_plan else None
    if plan:
        _check_recompute(plan, model.num_hidden_layers)
        check_plan(Facts(model=model, cluster=cluster, training=training, plan=columns_of([plan])))
    return Scenario(
        id=identity,
        model=model,
        cluster=cluster,
        training=training,
        plan=plan,
        constraints=constraints,
        traces=traces,
        notes=notes,
    )


def _check_recompute(plan: Plan, num_hidden_layers: int) -> None:
    """How much is recomputed may be stated only for the kind of recomputation that it details."""
    for name, kind in (("recompute_layers", "full"), ("recompute_modules", "selective")):
        value = getattr(plan, name)
        if value is not None and plan.recompute != kind:
            raise InputError(f"plan.{name}", shown(value), f'allowed only if plan.recompute is "{kind}"')
    deepest = math.ceil(num_hidden_layers / plan.pp)
    if plan.recompute_layers is not None and plan.recompute_layers > deepest:
        allowed = f"allowed: an integer from 1 to the {deepest} layers of a pipeline stage"
        raise InputError("plan.recompute_layers", plan.recompute_layers, allowed)


def _training(stated: JsonObject) -> TrainingSpec:
    if stated.get("lora") is not None:
        lora = get_object(stated["lora"], "training.lora")
        refuse_unknown(lora, set(LoraSpec.model_fields), "training.lora.")
        adapters = build(LoraSpec, lora, "training.lora.")
        return build(TrainingSpec, {**stated, "lora": adapters}, "training.")
    return build(TrainingSpec, stated, "training.")


def _check_precision(training: TrainingSpec, device: Device) -> None:
    if training.precision not in device.peak_flops:
        allowed = f"{device.name} has {', '.join(device.peak_flops)}"
        raise InputError("training.precision", training.precision, allowed)


def _text(stated: JsonObject, name: str, max_length: int) -> str | None:
    """What only some commands read: checked for its type here, for its meaning by them."""
    text = stated.get(name)
    if text is None or (isinstance(text, str) and len(text) <= max_length):
        return text
    raise InputError(name, shown(text), f"allowed: a text of at most {max_length:,} characters")


def _identity(value: object) -> str | int | float | None:
    short = isinstance(value, str) and len(value) <= 200
    number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    if value is None or short or number:
        return value  # type: ignore[return-value]
    raise InputError("id", shown(value), "allowed: a text of at most 200 characters, a number or null")


def _resolve_cluster(stated: StatedCluster, device: Device) -> ClusterSpec:
    return ClusterSpec(
        name=stated.name,
        device=device.name,
        num_devices=stated.num_devices,
        devices_per_node=stated.devices_per_node or device.devices_per_node,
        overrides=stated.overrides or {},
        topology=None if stated.topology is None else _topology(stated.topology, stated.num_devices),
    )


def _topology(stated: JsonObject, num_devices: int) -> TopologySpec:
    renamed = {TOPOLOGY_SYNONYMS.get(key, key): value for key, value in stated.items()}
    refuse_unknown(renamed, set(TopologySpec.model_fields), "cluster.topology.")
    topology = build(TopologySpec, renamed, "cluster.topology.")
    sizes = topology.torus_dimensions
    if sizes is not None and math.prod(sizes) != num_devices:
        allowed = f"must multiply to cluster.num_devices ({num_devices})"
        raise InputError("cluster.topology.torus_dimensions", "x".join(map(str, sizes)), allowed)
    return topology
