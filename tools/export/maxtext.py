"""MaxText: YAML that overrides base.yml.

Names: src/maxtext/configs/base.yml and types.py of AI-Hypercomputer/maxtext, commit e591f30. Weights are
split over the fsdp, context and expert axes together (logical_axis_rules, 'embed'), the batch over data, fsdp
and expert ('activation_batch'): that fixes what dp_shard and dp mean there.
"""

from typing import Any

from tools.export.mesh import split_axes
from tools.export.record import NO_RECOMPUTE_STATED, Export, Job
from tools.export.text import yaml_text
from tools.hardware import get_device

DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
QUANTIZATIONS = {"fp8": "fp8", "mxfp8": "te_mxfp8", "nvfp4": "te_nvfp4", "int8": "int8"}
# "minimal" keeps the results of all matrix products and recomputes what is cheap.
REMAT_POLICIES = {"none": "none", "selective": "minimal", "full": "full"}


def export_maxtext(job: Job) -> Export:
    cluster = job.scenario.cluster
    hardware = get_device(cluster.device, cluster.overrides)
    settings = {
        "base_config": "base.yml",
        "hardware": "tpu" if hardware.vendor == "google" else "gpu",
        **_mesh(job),
        **_batch(job),
        **_precision(job),
    }
    if job.plan.recompute is not None:
        settings["remat_policy"] = REMAT_POLICIES[job.plan.recompute]
    comments = (
        f"MaxText settings for {cluster.num_devices} devices, on top of base.yml.",
        "Use: python3 -m maxtext.trainers.pre_train.train maxtext.yml model_name=... run_name=...",
    )
    return Export("maxtext", "maxtext.yml", yaml_text(comments, settings), _notes(job))


def axis_sizes(job: Job) -> dict[str, int]:
    """The mesh axes that the plan fills; all others stay 1."""
    plan = job.plan
    data, fsdp = _data_axes(job)
    return {
        "tensor": 1 if plan.sequence_parallel else plan.tp,
        "tensor_sequence": plan.tp if plan.sequence_parallel else 1,
        "context": plan.cp,
        "expert": plan.ep,
        "fsdp": fsdp,
        "data": data,
        "pipeline": plan.pp,
    }


def _data_axes(job: Job) -> tuple[int, int]:
    plan = job.plan
    if job.zero_stage == 2:
        raise job.refuse("zero_stage", "MaxText shards weights (3), optimizer state (1) or nothing (0)")
    if plan.dp % plan.ep:
        raise job.refuse("ep", f"MaxText's expert axis splits the batch: must divide dp ({plan.dp})")
    split = plan.cp * plan.ep
    if job.zero_stage != 3:
        if split > 1:
            reason = f"MaxText splits weights over cp ({plan.cp}) and ep ({plan.ep}) too; must be 3"
            raise job.refuse("zero_stage", reason)
        if job.zero_stage == 1 and plan.dp_shard != plan.dp:
            reason = f"shard_optimizer_over_data takes the whole data axis; must be dp ({plan.dp})"
            raise job.refuse("dp_shard", reason)
        return plan.dp, 1
    if plan.dp_shard % split:
        reason = (
            f"MaxText splits weights over cp * ep = {plan.cp} * {plan.ep} too; must be a multiple of {split}"
        )
        raise job.refuse("dp_shard", reason)
    return plan.dp * plan.cp // plan.dp_shard, plan.dp_shard // split


def _mesh(job: Job) -> dict[str, Any]:
    inside, across = split_axes(axis_sizes(job), job.scenario.cluster)
    named = {f"ici_{axis}_parallelism": size for axis, size in inside.items()}
    named |= {f"dcn_{axis}_parallelism": size for axis, size in across.items()}
    zero1: dict[str, Any] = {"shard_optimizer_over_data": True} if job.zero_stage == 1 else {}
    return named | zero1


def _batch(job: Job) -> dict[str, Any]:
    """MaxText counts the batch per device, whatever the axes: micro-batch * dp / devices, or a fraction."""
    training, plan = job.scenario.training, job.plan
    batch: dict[str, Any] = {"max_target_length": training.seq_len}
    if plan.pp == 1:
        sequences = plan.micro_batch_size * plan.dp
        return batch | {
            "per_device_batch_size": _per_device(sequences, job),
            "gradient_accumulation_steps": job.micro_batches,
        }
    layers = job.scenario.model.num_hidden_layers
    return batch | {
        "per_device_batch_size": _per_device(training.global_batch_size, job),
        "gradient_accumulation_steps": 1,
        "num_pipeline_microbatches": job.micro_batches,
        "num_pipeline_repeats": plan.vpp,
        **_layers_per_stage(job, layers),
    }


def _layers_per_stage(job: Job, layers: int) -> dict[str, int]:
    """Leading dense layers of an MoE model may stay outside the pipeline."""
    chunks, model = job.plan.pp * job.plan.vpp, job.scenario.model
    piped = layers if layers % chunks == 0 else layers - model.first_k_dense_replace
    return {"num_layers_per_pipeline_stage": piped // chunks, "pipeline_parallel_layers": piped}


def _per_device(sequences: int, job: Job) -> float | int:
    """MaxText multiplies back and cuts to an integer: a fraction that comes out too small is refused."""
    devices = job.scenario.cluster.num_devices
    value = sequences / devices
    if int(devices * value) != sequences:
        reason = f"{sequences} sequences over {devices} devices is a fraction that MaxText would round down"
        raise job.refuse("micro_batch_size", reason)
    return int(value) if value.is_integer() else value


def _precision(job: Job) -> dict[str, str]:
    precision = job.scenario.training.precision
    if precision in QUANTIZATIONS:
        return {"dtype": "bfloat16", "quantization": QUANTIZATIONS[precision]}
    return {"dtype": DTYPES[precision]}


def _notes(job: Job) -> tuple[str, ...]:
    plan, told = job.plan, []
    if plan.recompute is None:
        told.append(NO_RECOMPUTE_STATED)
    if job.scenario.model.is_moe and plan.tp > 1 and plan.etp == 1:
        told.append(f"MaxText splits the experts over the tensor axis too: etp is {plan.tp} there, not 1")
    if not job.scenario.training.flash_attention:
        told.append("set attention=dot_product to train without flash attention")
    return tuple(told)
