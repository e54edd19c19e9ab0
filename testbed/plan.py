"""Which scenarios the reference trainer runs, and which layers are on which pipeline stage. Needs no torch.

Any other scenario is refused with the field at fault.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tools.errors import InputError
from tools.scenario import ModelSpec, Plan, Scenario, TrainingSpec


@dataclass(frozen=True)
class ChunkSpec:
    """A part of the model; `layers` says of each layer number whether it has experts."""

    layers: Mapping[int, bool]
    is_first: bool
    is_last: bool


def chunk_specs(model: ModelSpec, plan: Plan) -> list[ChunkSpec]:
    """All chunks in order, as even as the layers allow; chunk i stands on stage i modulo pp."""
    chunks = plan.pp * plan.vpp
    base, longer = divmod(model.num_hidden_layers, chunks)
    specs, start = [], 0
    for i in range(chunks):
        stop = start + base + (i < longer)
        layers = {layer: model.is_moe_layer(layer) for layer in range(start, stop)}
        specs.append(ChunkSpec(layers, is_first=i == 0, is_last=i == chunks - 1))
        start = stop
    return specs


def is_sharded(plan: Plan) -> bool:
    """Whether `fully_shard` runs: ZeRO over more than one rank."""
    return plan.zero_stage >= 2 and plan.dp_shard > 1


def expert_shards(plan: Plan) -> int:
    """Over how many of its copies ZeRO divides an expert: the copies of one dense shard group."""
    return max(plan.dp_shard * plan.tp // plan.ep, 1) if is_sharded(plan) else 1


def has_own_expert_mesh(model: ModelSpec, plan: Plan) -> bool:
    """Whether experts have other replicas than the dense parameters."""
    return model.is_moe and (plan.ep > 1 or plan.tp > 1)


FRAMEWORK = "torch-fsdp2"
PRECISIONS = ("fp32", "bf16")


def checked_plan(scenario: Scenario, unstated_recompute: str = "none") -> Plan:
    """The plan with nothing left open; raises InputError for what the trainer cannot run."""
    if scenario.plan is None:
        raise InputError("plan", None, "the trainer needs a plan to run")
    plan = scenario.plan.model_copy(update={"recompute": scenario.plan.recompute or unstated_recompute})
    _check_training(scenario.training)
    _check_model(scenario.model, plan)
    _check_splits(scenario, plan)
    _check_zero_bubble(plan)
    if scenario.model.is_moe:
        _check_experts(scenario.model, plan)
    return plan


def _check_training(training: TrainingSpec) -> None:
    if training.framework != FRAMEWORK:
        allowed = f"the reference trainer is {FRAMEWORK}: give that, so that its rules and defaults hold"
        raise InputError("training.framework", training.framework, allowed)
    if training.precision not in PRECISIONS:
        raise InputError("training.precision", training.precision, f"allowed: {', '.join(PRECISIONS)}")


def _check_model(model: ModelSpec, plan: Plan) -> None:
    for name, reason in (
        ("kv_lora_rank", "the reference model has no latent attention (MLA)"),
        ("sliding_window", "the reference model has no sliding windows"),
        ("num_nextn_predict_layers", "the reference model predicts one token only"),
        ("layer_types", "the reference model has attention in every layer"),
        ("ffn_types", "the reference model has one feed-forward part in every layer"),
        ("index_topk", "the reference model has no sparse attention"),
        ("o_groups", "the reference model has no compressed attention"),
        ("attn_output_gate", "the reference model has no output gates"),
    ):
        if getattr(model, name):
            raise InputError(f"model.{name}", getattr(model, name), f"{reason}; must be 0 or absent")
    if model.head_dim % 2:
        raise InputError("model.head_dim", model.head_dim, "must be even for rotary positions")
    if model.tie_word_embeddings and plan.pp > 1:
        allowed = "embedding and head stand on different stages: must be false where pp is above 1"
        raise InputError("model.tie_word_embeddings", True, allowed)


def _check_splits(scenario: Scenario, plan: Plan) -> None:
    model, seq_len = scenario.model, scenario.training.seq_len
    widths = {"vocab_size": model.vocab_size}
    if model.num_dense_layers:
        widths["intermediate_size"] = model.intermediate_size
    if model.is_moe:
        widths["shared_expert_intermediate_size"] = model.shared_expert_intermediate_size
    for name, width in widths.items():
        if width % plan.tp:
            raise InputError("plan.tp", plan.tp, f"must divide model.{name} ({width})")
    if plan.cp > 1 and seq_len % (2 * plan.cp):
        allowed = (
            f"seq_len ({seq_len}) must be a multiple of 2 * cp: each rank takes two pieces of the sequence"
        )
        raise InputError("plan.cp", plan.cp, allowed)


def _check_zero_bubble(plan: Plan) -> None:
    """In PyTorch 2.13 the first runs to the end and gives other losses, the second fails in backward."""
    if plan.pp == 1 or plan.schedule != "zero_bubble":
        return
    if is_sharded(plan):
        allowed = "fully_shard loses gradients under a zero_bubble schedule; must be 1, or another schedule"
        raise InputError("plan.dp_shard", plan.dp_shard, allowed)
    if plan.recompute == "selective":
        allowed = (
            "a zero_bubble schedule runs backward in two parts: must be none or full, or another schedule"
        )
        raise InputError("plan.recompute", plan.recompute, allowed)


def _check_experts(model: ModelSpec, plan: Plan) -> None:
    if plan.etp > 1:
        raise InputError("plan.etp", plan.etp, "the reference model does not divide an expert; must be 1")
    if plan.tp > 1 and not plan.sequence_parallel:
        allowed = (
            "must be true where a model with experts has tp above 1: tensor ranks route different tokens"
        )
        raise InputError("plan.sequence_parallel", False, allowed)
    if is_sharded(plan) and has_own_expert_mesh(model, plan) and plan.recompute == "selective":
        allowed = "experts sharded apart gather inside the recomputed layer: must be none or full"
        raise InputError("plan.recompute", plan.recompute, allowed)
    copies = plan.dp * plan.cp * plan.tp // plan.ep
    shards = plan.dp_shard * plan.tp
    if is_sharded(plan) and (max(shards, plan.ep) % min(shards, plan.ep) or copies % expert_shards(plan)):
        raise InputError("plan.ep", plan.ep, f"must divide dp_shard * tp ({shards}) or be a multiple of it")
