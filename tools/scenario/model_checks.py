"""What the numbers of a model must satisfy among themselves, whatever the cluster and the plan."""

from tools.errors import InputError
from tools.scenario.fields import NOTHING
from tools.scenario.spec import ModelSpec


def check_model(model: ModelSpec) -> None:
    """Raises InputError for the first field that contradicts another."""
    _check_attention(model)
    _check_experts(model)


def _check_attention(model: ModelSpec) -> None:
    heads, groups = model.num_attention_heads, model.num_key_value_heads
    if heads % groups:
        raise InputError("model.num_key_value_heads", groups, f"must divide the {heads} attention heads")
    if not model.is_mla:
        return
    for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"):
        _require(model, name, "where kv_lora_rank is given (MLA)")


def _check_experts(model: ModelSpec) -> None:
    if model.num_dense_layers:
        _require(model, "intermediate_size", "where a layer has no experts")
    if not model.is_moe:
        return
    _require(model, "moe_intermediate_size", "where num_experts is given")
    _require(model, "num_experts_per_tok", "where num_experts is given")
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


def _require(model: ModelSpec, name: str, where: str) -> None:
    if getattr(model, name) == 0:
        given = 0 if name in model.model_fields_set else NOTHING
        raise InputError(f"model.{name}", given, f"allowed: an integer of 1 or more {where}")
