"""The scenario as a caller writes it, and how it becomes a `Scenario`: defaults filled in, rules checked.

Order of the checks: structure, types and bounds, then the rules of model, cluster and framework. Every
InputError names the field.
"""

import json
import math
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field, JsonValue, SkipValidation, model_validator

from tools.errors import InputError
from tools.hardware import get_device
from tools.scenario.columns import PlanColumns, PlanFacts
from tools.scenario.fields import NOTHING, Allowed, JsonObject, StrictModel, build, get_object, shown
from tools.scenario.huggingface import parse_model
from tools.scenario.model import ModelSpec
from tools.scenario.rules import check_plan
from tools.scenario.spec import (
    MAX_NOTES,
    MAX_PATH,
    PLAN_ROLES,
    ClusterSpec,
    Plan,
    RunGoal,
    Scenario,
    StatedCluster,
    TrainingSpec,
)
from tools.scenario.stated import StatedConstraints, StatedPlan, resolve_defaults

EXAMPLE: JsonObject = {
    "model": {
        "name": "Llama-3.1-70B", "num_hidden_layers": 80, "hidden_size": 8192, "intermediate_size": 28672,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256,
    },
    "cluster": {"device": "h100-sxm-80gb", "num_devices": 64, "devices_per_node": 8},
    "training": {
        "seq_len": 8192, "global_batch_size": 128, "precision": "bf16", "framework": "megatron-core",
        "flash_attention": True,
    },
    "plan": {
        "tp": 4, "pp": 2, "vpp": 5, "cp": 1, "ep": 1, "dp": 8, "dp_shard": 8, "zero_stage": 1,
        "micro_batch_size": 1, "sequence_parallel": True, "recompute": "none",
    },
}  # fmt: skip
MAX_ID = 1e300
MLA_FIELDS = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
EXPERT_FIELDS = ("moe_intermediate_size", "num_experts_per_tok")
MODEL_FIELDS_DESCRIBED = 10
"""The first fields of `ModelSpec`, which every family has."""
MODEL_MARKS = frozenset(("architectures", "model_type", "num_hidden_layers", "hidden_size", "text_config"))


def _short(value: float) -> float:
    if abs(value) >= MAX_ID:
        raise ValueError("too long to be repeated")
    return value


class StatedScenario(StrictModel):
    """A workload: what is trained, where, under which contract and, where known, by which plan."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})

    id: Annotated[
        Annotated[str, Field(max_length=200)] | Annotated[int | float, AfterValidator(_short)] | None,
        Allowed("a text of at most 200 characters, a number or null"),
    ] = Field(None, description="repeated in the answer")
    model: dict[str, SkipValidation[JsonValue]] = Field(
        description="a Hugging Face config.json as it is, or its fields",
        json_schema_extra=lambda schema: schema.update(properties=_model_properties()),
    )
    cluster: StatedCluster
    training: TrainingSpec
    plan: StatedPlan | None = Field(None, description="today's configuration; absent for a cold start")
    constraints: StatedConstraints | None = None
    traces: Annotated[str, Field(max_length=MAX_PATH)] | None = Field(
        None, description="`trace:<id>` of an upload; a folder of the server with the scope operator"
    )
    notes: Annotated[str, Field(max_length=MAX_NOTES)] | None = Field(
        None, description="an engineer's free text"
    )
    run: RunGoal | None = Field(
        None, description="tokens, price and failures of the whole run: forecasts them"
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_bare_model(cls, stated: object) -> object:
        """A model's config.json alone says nothing about devices and training."""
        if isinstance(stated, Mapping) and "model" not in stated and not MODEL_MARKS.isdisjoint(stated):
            rule = (
                "this looks like a model's config.json: put it under `model`, beside `cluster` and "
                "`training`, or run 'asap optimize config.json --devices \"64 x H100\"', which "
                "assumes the rest"
            )
            raise InputError("model", NOTHING, rule)
        return stated

    def resolve(self, *, need_plan: bool = False, check_rules: bool = True) -> Scenario:
        """The scenario with every default filled in; InputError for the first rule that it breaks."""
        if need_plan and self.plan is None:
            raise InputError("plan", NOTHING, "allowed: a JSON object; 'asap optimize' finds one")
        model, training, stated = parse_model(self.model), self.training, self.cluster
        check_model(model)
        device = get_device(stated.device, stated.overrides or {})
        sizes = stated.topology and stated.topology.torus_dimensions
        if sizes and math.prod(sizes) != stated.num_devices:
            rule = f"must multiply to cluster.num_devices ({stated.num_devices})"
            raise InputError("cluster.topology.torus_dimensions", "x".join(map(str, sizes)), rule)
        if training.precision not in device.peak_flops:
            rule = f"{device.name} has {', '.join(device.peak_flops)}"
            raise InputError("training.precision", training.precision, rule)
        cluster = ClusterSpec(
            name=stated.name,
            device=device.name,
            num_devices=stated.num_devices,
            devices_per_node=stated.devices_per_node or device.devices_per_node,
            overrides=stated.overrides or {},
            topology=stated.topology,
            fabric=stated.fabric,
        )
        plan = None
        if self.plan:
            plan = resolve_defaults(self.plan, training.framework, model.num_hidden_layers)
            if check_rules:
                _check_details(plan, model.num_hidden_layers)
                check_plan(PlanFacts(model, cluster, training, PlanColumns.of([plan])))
        constraints = self.constraints or StatedConstraints()
        return Scenario(
            id=self.id,
            model=model,
            cluster=cluster,
            training=training,
            plan=plan,
            constraints=constraints.model_dump(mode="json", exclude_none=True, by_alias=True),
            traces=self.traces,
            notes=self.notes,
            run=self.run,
        )


def _model_properties() -> JsonObject:
    """What the JSON schema says of a model: fields that every family has; configurations hold many more."""
    properties = ModelSpec.model_json_schema()["properties"]
    known = list(ModelSpec.model_fields)[:MODEL_FIELDS_DESCRIBED]
    return {name: {"anyOf": [properties[name], {"type": "null"}]} for name in known}


def parse_scenario(stated: object, *, need_plan: bool = True, check_rules: bool = True) -> Scenario:
    """A legal scenario with every default filled in; raises InputError for the first thing that is wrong.

    Without `check_rules` the plan may break a rule of its framework, as one that crashed does.
    """
    parsed = build(StatedScenario, get_object(stated, "scenario"))
    return parsed.resolve(need_plan=need_plan, check_rules=check_rules)


def check_model(model: ModelSpec) -> None:
    """Raises InputError for the first field that contradicts another."""
    layers, heads, experts = model.num_hidden_layers, model.num_attention_heads, model.num_experts
    lengths = f"allowed: a list with an entry for each of {layers} layers"
    feeds_experts = any(kind in ("moe", "both") for kind in model.ffn_types)
    lacking = {
        **dict.fromkeys(MLA_FIELDS if model.is_mla else (), "if kv_lora_rank is given (MLA)"),
        **({"intermediate_size": "if a layer has no experts"} if model.num_dense_layers else {}),
        **dict.fromkeys(EXPERT_FIELDS if model.is_moe else (), "if num_experts is given"),
    }
    contradictions: list[tuple[object, str, object, str]] = [
        (len(kinds) not in (0, layers), name, shown(kinds), lengths)
        for name, kinds in (("layer_types", model.layer_types), ("ffn_types", model.ffn_types))
    ]
    contradictions += [
        (model.num_mixer_layers and model.mixer is None, "mixer", NOTHING,
         "allowed: a JSON object, because layer_types names a mixer"),
        (feeds_experts and not model.is_moe, "num_experts", experts,
         "allowed: 1 or more, because ffn_types names moe"),
        (heads % model.num_key_value_heads, "num_key_value_heads", model.num_key_value_heads,
         f"must divide the {heads} attention heads"),
    ]  # fmt: skip
    for name, condition in lacking.items():
        stated = 0 if name in model.model_fields_set else NOTHING
        rule = f"allowed: an integer of 1 or more {condition}"
        contradictions.append((getattr(model, name) == 0, name, stated, rule))
    if model.is_moe:  # node-limited routing: the experts in equal groups, of which a token may use some
        contradictions += [
            (model.num_experts_per_tok > experts, "num_experts_per_tok", model.num_experts_per_tok,
             f"allowed: an integer from 1 to num_experts ({experts})"),
            (not model.num_moe_layers, "first_k_dense_replace", model.first_k_dense_replace,
             f"leaves none of the {layers} layers with experts"),
            (model.n_group and experts % model.n_group, "n_group", model.n_group,
             f"allowed: a number that divides num_experts ({experts})"),
            (model.topk_group > model.n_group, "topk_group", model.topk_group,
             f"allowed: an integer from 0 to n_group ({model.n_group})"),
        ]  # fmt: skip
    for contradicts, name, given, rule in contradictions:
        if contradicts:
            raise InputError(f"model.{name}", given, rule)


def _check_details(plan: Plan, num_hidden_layers: int) -> None:
    """A detail may be stated only for the value that it details."""
    for name, role in PLAN_ROLES.items():
        value = getattr(plan, name)
        if role.only_with is None or value is None:
            continue
        field, needed = role.only_with
        if getattr(plan, field) != needed:
            rule = f"allowed only if plan.{field} is {json.dumps(needed)}"
            raise InputError(f"plan.{name}", shown(value), rule)
    deepest = math.ceil(num_hidden_layers / plan.pp)
    if plan.recompute_layers is not None and plan.recompute_layers > deepest:
        rule = f"allowed: an integer from 1 to the {deepest} layers of a pipeline stage"
        raise InputError("plan.recompute_layers", plan.recompute_layers, rule)
