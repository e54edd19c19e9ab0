"""Request and response shapes shared by the API, MCP and the pages: the scenario and the base of every
response.

Pydantic only: imports no web framework and no database.
"""

from collections.abc import Mapping
from typing import Annotated, Any, cast

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.json_schema import JsonSchemaValue

from tools.scenario import StatedPlan, TrainingSpec
from tools.scenario.fields import JsonObject
from tools.scenario.frameworks import StatedCluster


class Public(BaseModel):
    """Base of every response: what a shape does not name does not leave the server. Rows are read by
    attribute; their times, in seconds, become datetimes in UTC."""

    model_config = ConfigDict(extra="ignore", from_attributes=True)


MODEL: JsonObject = {
    "name": "Llama-3.1-70B",
    "num_hidden_layers": 80,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
}
CLUSTER: JsonObject = {"device": "h100-sxm-80gb", "num_devices": 64, "devices_per_node": 8}
TRAINING: JsonObject = {
    "seq_len": 8192,
    "global_batch_size": 128,
    "precision": "bf16",
    "framework": "megatron-core",
    "flash_attention": True,
}
PLAN: JsonObject = {
    "tp": 4,
    "pp": 2,
    "vpp": 5,
    "cp": 1,
    "ep": 1,
    "dp": 8,
    "dp_shard": 8,
    "zero_stage": 1,
    "micro_batch_size": 1,
    "sequence_parallel": True,
    "recompute": "none",
}
EXAMPLE: JsonObject = {"model": MODEL, "cluster": CLUSTER, "training": TRAINING, "plan": PLAN}

_NEEDED = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
_NOT_NEEDED = ("intermediate_size", "num_key_value_heads", "head_dim")
_MODEL_SCHEMA: JsonSchemaValue = {
    "type": "object",
    "description": "a Hugging Face config.json as it is, or its fields",
    "properties": {
        "name": {"type": "string", "maxLength": 200},
        **{name: {"type": "integer", "minimum": 1} for name in _NEEDED},
        **{name: {"type": ["integer", "null"], "minimum": 1} for name in _NOT_NEEDED},
    },
    "required": list(_NEEDED),
    "additionalProperties": True,
}

_BOUNDS = {"ge": "minimum", "le": "maximum"}


def _schema_of(part: type[BaseModel]) -> JsonSchemaValue:
    schema = part.model_json_schema()
    parts = schema.pop("$defs", {})
    return cast("JsonSchemaValue", _in_json_schema(schema, parts))


def _in_json_schema(value: object, parts: Mapping[str, object]) -> object:
    """Pydantic writes the bounds of a whole number or null in words of its own, which clients pass over.

    References to nested parts are replaced by the parts: inside an OpenAPI document they would lead nowhere.
    """
    if isinstance(value, dict):
        if "$ref" in value:
            return _in_json_schema(parts[value["$ref"].removeprefix("#/$defs/")], parts)
        return {_BOUNDS.get(name, name): _in_json_schema(inner, parts) for name, inner in value.items()}
    return [_in_json_schema(inner, parts) for inner in value] if isinstance(value, list) else value


Model = Annotated[Any, WithJsonSchema(_MODEL_SCHEMA)]
Cluster = Annotated[Any, WithJsonSchema(_schema_of(StatedCluster))]
Training = Annotated[Any, WithJsonSchema(_schema_of(TrainingSpec))]
StatedPlanOrNull = Annotated[Any, WithJsonSchema({"anyOf": [_schema_of(StatedPlan), {"type": "null"}]})]
ObjectOrNull = Annotated[
    Any, WithJsonSchema({"anyOf": [{"type": "object", "additionalProperties": True}, {"type": "null"}]})
]
TextOrNull = Annotated[
    Any, WithJsonSchema({"anyOf": [{"type": "string", "maxLength": 100_000}, {"type": "null"}]})
]
Identity = Annotated[
    Any,
    WithJsonSchema({"anyOf": [{"type": "string", "maxLength": 200}, {"type": "number"}, {"type": "null"}]}),
]


class ScenarioCreate(BaseModel):
    """A workload: what is trained, where, under which contract and, where known, by which plan."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"examples": [EXAMPLE]})

    id: Identity = Field(None, description="repeated in the answer")
    model: Model
    cluster: Cluster
    training: Training
    plan: StatedPlanOrNull = Field(None, description="today's configuration; absent for a cold start")

    def body(self) -> JsonObject:
        """What was sent, for `tools.scenario` or `graph.request` to read."""
        return self.model_dump(exclude_unset=True)


class SearchCreate(ScenarioCreate):
    """A workload whose plans are to be searched."""

    constraints: ObjectOrNull = Field(
        None,
        description="per plan field a value, a list of allowed values (`tp`: [2, 4]) or an object of `not` "
        "(a list), `min` and `max`; `max_memory_fraction` (0.92) or `min_fit_probability`; "
        "`space`, `practice` (default) or `all`; "
        "`avoid`, combinations of plan fields to leave out ([{`tp`: 8, `pp`: 4}]); "
        "from today's plan `max_changes` and `keep_checkpoint_layout` (tp, pp)",
    )
    traces: TextOrNull = Field(
        None, description="`trace:<id>` of an upload; a folder of the server with the scope operator"
    )
    notes: TextOrNull = Field(None, description="an engineer's free text")


class Budget(BaseModel):
    """What a session may spend; never more than the installation allows."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    session_s: float | None = Field(None, gt=0, le=86_400, description="seconds")
    tokens: int | None = Field(None, ge=0, le=10**9, description="of the language model")
    cost: float | None = Field(None, ge=0, le=10**6, description="money for the language model")
    device_hours: float | None = Field(None, ge=0, le=10**6, description="ranks times hours of its trials")
    trials: int | None = Field(None, ge=0, le=64, description="plans it may measure, the baseline among them")
