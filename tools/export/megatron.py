"""Megatron-LM: the arguments of its training scripts, as a bash array to source.

Names: megatron/training/arguments.py, and the fields of TransformerConfig, ModelParallelConfig and
TrainingConfig, from which Megatron-LM makes its options. NeMo takes the same settings: `nemo.py`.
"""

import shlex
from typing import Any

from tools.export.record import NO_RECOMPUTE_STATED, Export, Job
from tools.export.text import comment_lines

SHARDING = {2: "optim_grads", 3: "optim_grads_params"}
PRECISION_ARGUMENTS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "fp16": {"fp16": True},
    "bf16": {"bf16": True},
    "fp8": {"bf16": True, "fp8_format": "hybrid"},
    "mxfp8": {"bf16": True, "fp8_format": "e4m3", "fp8_recipe": "mxfp8"},
    "nvfp4": {"bf16": True, "fp4_format": "e2m1"},
}
RECOMPUTE_ARGUMENTS: dict[str, dict[str, Any]] = {
    "none": {},
    "selective": {"recompute_granularity": "selective"},
    "full": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
}


def export_megatron(job: Job) -> Export:
    """Arguments only: model, data and optimizer stay in the launch script."""
    cluster = job.scenario.cluster
    comments = (
        f"Megatron-LM arguments for {cluster.num_devices} devices, {cluster.devices_per_node} a node.",
        'Use: source megatron-args.sh; torchrun ... pretrain_gpt.py "${ASAP_ARGS[@]}" ...',
    )
    rows = "".join(f"    {_row(name, value)}\n" for name, value in arguments(job).items())
    text = f"{comment_lines(comments)}ASAP_ARGS=(\n{rows})\n"
    return Export("megatron", "megatron-args.sh", text, notes(job))


def arguments(job: Job) -> dict[str, Any]:
    """By Megatron's own names with underscores; True for a flag."""
    training, plan = job.scenario.training, job.plan
    if training.precision not in PRECISION_ARGUMENTS:
        raise job.refuse_precision("Megatron-LM", PRECISION_ARGUMENTS)
    return {
        **degrees(job),
        **_stages(job),
        **_sharding(job),
        "micro_batch_size": plan.micro_batch_size,
        "global_batch_size": training.global_batch_size,
        "seq_length": training.seq_len,
        **PRECISION_ARGUMENTS[training.precision],
        **RECOMPUTE_ARGUMENTS[plan.recompute or "none"],
    }


def degrees(job: Job) -> dict[str, Any]:
    plan = job.plan
    sizes: dict[str, Any] = {
        "tensor_model_parallel_size": plan.tp,
        "pipeline_model_parallel_size": plan.pp,
        "context_parallel_size": plan.cp,
    }
    if job.scenario.model.is_moe:
        # Megatron's own default for experts is tp, so that 1 must be written too.
        sizes |= {"expert_model_parallel_size": plan.ep, "expert_tensor_parallel_size": plan.etp}
    return sizes | ({"sequence_parallel": True} if plan.sequence_parallel else {})


def _stages(job: Job) -> dict[str, Any]:
    uneven = uneven_stages(job, "decoder_last_pipeline_num_layers")
    if job.plan.vpp == 1 or "pipeline_model_parallel_layout" in uneven:
        return uneven  # a layout tells the chunks too, and Megatron-LM takes one of the two only
    return {"num_virtual_stages_per_pipeline_rank": job.plan.vpp} | uneven


def uneven_stages(job: Job, last_stage_name: str) -> dict[str, Any]:
    """Layers that do not divide: embedding and loss count as layers, or the last stage takes fewer.

    TransformerConfig and the command line call the layers of the last stage differently.
    """
    plan, layers = job.plan, job.scenario.model.num_hidden_layers
    missing = -layers % (plan.pp * plan.vpp)
    if missing <= 2:
        flags = ("account_for_loss_in_pipeline_split", "account_for_embedding_in_pipeline_split")
        return dict.fromkeys(flags[:missing], True)
    if plan.vpp > 1:
        return {"pipeline_model_parallel_layout": _layout(job, (layers + missing) // (plan.pp * plan.vpp))}
    per_stage = -(-layers // plan.pp)
    last = layers - per_stage * (plan.pp - 1)
    if last < 1:
        reason = f"{layers} layers in {plan.pp} stages leave the last one empty"
        raise job.refuse("pp", reason)
    return {last_stage_name: last}


def _layout(job: Job, places: int) -> str:
    """Three places are missing: embedding and loss take one each, and MTP (or nothing) the third.

    Letters as in megatron/core/transformer/pipeline_parallel_layer_layout.py.
    """
    if places < 2:
        raise job.refuse("vpp", "leaves no layer for the chunks of embedding and loss")
    middle = f"({'t' * places}|)*{job.plan.pp * job.plan.vpp - 2}"
    predictions = "m" * job.scenario.model.num_nextn_predict_layers
    return f"E{'t' * (places - 1)}|{middle}{'t' * (places - 2)}{predictions}L"


def _sharding(job: Job) -> dict[str, Any]:
    if job.zero_stage == 0:
        return {}
    check_replicas(job)
    chosen: dict[str, Any] = {"use_distributed_optimizer": True}
    if job.zero_stage in SHARDING:
        chosen |= {
            "use_megatron_fsdp": True,
            "data_parallel_sharding_strategy": SHARDING[job.zero_stage],
            "ckpt_format": "fsdp_dtensor",  # the only format that Megatron-FSDP saves in
        }
    return chosen | ({"num_distributed_optimizer_instances": job.replicas} if job.replicas > 1 else {})


def check_replicas(job: Job) -> None:
    """The replicas of what is sharded must divide the data ranks of the experts too (parallel_state.py)."""
    plan = job.plan
    expert_ranks = plan.dp * plan.cp * plan.tp // (plan.ep * plan.etp)
    if job.scenario.model.is_moe and expert_ranks % job.replicas:
        reason = f"{job.replicas} replicas do not divide the {expert_ranks} data ranks of an expert"
        raise job.refuse("dp_shard", reason)


def notes(job: Job) -> tuple[str, ...]:
    plan, told = job.plan, []
    if plan.recompute is None:
        told.append(NO_RECOMPUTE_STATED)
    if job.zero_stage and plan.cp > 1 and plan.dp_shard == plan.dp:
        told.append(
            f"dp_shard {plan.dp} is less than dp * cp = {plan.dp * plan.cp}: what is sharded is kept "
            f"{job.replicas} times; Megatron's own default shards over all {plan.dp * plan.cp}"
        )
    if job.zero_stage in SHARDING:
        told.append("Megatron-FSDP needs CUDA_DEVICE_MAX_CONNECTIONS unset or above 1")
    return tuple(told)


def _row(name: str, value: object) -> str:
    flag = "--" + name.replace("_", "-")
    return flag if value is True else f"{flag} {shlex.quote(str(value))}"
