"""Megatron-LM: writes the arguments of its training scripts as a bash array; reads launch scripts or YAML.

Names and defaults: megatron/training/arguments.py, TransformerConfig, ModelParallelConfig and
TrainingConfig.
"""

import re
import shlex
from dataclasses import replace

from tools.errors import InputError
from tools.frameworks.exporting import (
    RECOMPUTE_NOT_STATED,
    Export,
    ExportJob,
    Settings,
    comment_lines,
    first_names,
)
from tools.frameworks.importing import (
    NO_SHARDING,
    Degrees,
    Draft,
    ImportOptions,
    Sharding,
    stated_plan,
)
from tools.frameworks.megatron_model import read_model
from tools.frameworks.reading import JsonObject, SettingsReader, check_length, parse_yaml
from tools.frameworks.shell import has_options, parse_arguments, substitute

STRATEGIES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
FSDP_STRATEGIES = first_names(STRATEGIES)
FSDP_STAGES = (2, 3)
"""ZeRO stages that Megatron-FSDP runs; stage 1 is the distributed optimizer."""
DEGREES = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size",
}
EXPERT_DEGREES = {"ep": "expert_model_parallel_size", "etp": "expert_tensor_parallel_size"}
PRECISION_ARGUMENTS: dict[str, Settings] = {
    "fp32": {},
    "fp16": {"fp16": True},
    "bf16": {"bf16": True},
    "fp8": {"bf16": True, "fp8_format": "hybrid"},
    "mxfp8": {"bf16": True, "fp8_format": "e4m3", "fp8_recipe": "mxfp8"},
    "nvfp4": {"bf16": True, "fp4_format": "e2m1"},
}
RECOMPUTE_ARGUMENTS: dict[str, Settings] = {
    "none": {},
    "selective": {"recompute_granularity": "selective"},
    "full": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
}
DISPATCHERS = {"alltoall": "alltoall", "alltoall_seq": "alltoall", "allgather": "allgather", "flex": "deepep"}
MAX_STAGES = 10_000


def export_megatron(job: ExportJob) -> Export:
    """Arguments only: model, data and optimizer stay in the launch script."""
    cluster = job.scenario.cluster
    comments = (
        f"Megatron-LM arguments for {cluster.num_devices} devices, {cluster.devices_per_node} per node.",
        'Use: source megatron-args.sh; torchrun ... pretrain_gpt.py "${ASAP_ARGS[@]}" ...',
    )
    rows = "".join(f"    {_argument(name, value)}\n" for name, value in _arguments(job).items())
    text = f"{comment_lines(comments)}ASAP_ARGS=(\n{rows})\n"
    return Export("megatron", "megatron-args.sh", text, export_notes(job))


def _arguments(job: ExportJob) -> Settings:
    """By Megatron's own names with underscores; True is a flag."""
    training, plan = job.scenario.training, job.plan
    if training.precision not in PRECISION_ARGUMENTS:
        raise job.refuse_precision("Megatron-LM", PRECISION_ARGUMENTS)
    return {
        **degree_arguments(job),
        **_stage_arguments(job),
        **_sharding_arguments(job),
        "micro_batch_size": plan.micro_batch_size,
        "global_batch_size": training.global_batch_size,
        "seq_length": training.seq_len,
        **PRECISION_ARGUMENTS[training.precision],
        **RECOMPUTE_ARGUMENTS[plan.recompute or "none"],
        **({"optimizer_cpu_offload": True} if training.optimizer_offload else {}),
    }


def degree_arguments(job: ExportJob) -> Settings:
    plan = job.plan
    # Megatron's own default for experts is tp, so that 1 must be written too.
    names = DEGREES | (EXPERT_DEGREES if job.scenario.model.is_moe else {})
    sizes: Settings = {name: getattr(plan, field) for field, name in names.items()}
    return sizes | ({"sequence_parallel": True} if plan.sequence_parallel else {})


def _stage_arguments(job: ExportJob) -> Settings:
    uneven = uneven_stages(job, "decoder_last_pipeline_num_layers")
    if job.plan.vpp == 1 or "pipeline_model_parallel_layout" in uneven:
        return uneven  # a layout implies the chunks, and Megatron-LM takes one of the two only
    return {"num_virtual_stages_per_pipeline_rank": job.plan.vpp} | uneven


def uneven_stages(job: ExportJob, last_stage_name: str) -> Settings:
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


def _layout(job: ExportJob, places: int) -> str:
    """Three places are missing: embedding and loss take one each, and MTP (or nothing) the third.

    Letters as in megatron/core/transformer/pipeline_parallel_layer_layout.py.
    """
    if places < 2:
        raise job.refuse("vpp", "leaves no layer for the chunks of embedding and loss")
    middle = f"({'t' * places}|)*{job.plan.pp * job.plan.vpp - 2}"
    predictions = "m" * job.scenario.model.num_nextn_predict_layers
    return f"E{'t' * (places - 1)}|{middle}{'t' * (places - 2)}{predictions}L"


def _sharding_arguments(job: ExportJob) -> Settings:
    if job.zero_stage == 0:
        return {}
    check_replicas(job)
    arguments: Settings = {"use_distributed_optimizer": True}
    if job.zero_stage in FSDP_STAGES:
        arguments |= {
            "use_megatron_fsdp": True,
            "data_parallel_sharding_strategy": FSDP_STRATEGIES[job.zero_stage],
            "ckpt_format": "fsdp_dtensor",  # the only format that Megatron-FSDP saves in
        }
    return arguments | ({"num_distributed_optimizer_instances": job.replicas} if job.replicas > 1 else {})


def check_replicas(job: ExportJob) -> None:
    """The replicas of what is sharded must divide the data ranks of the experts too (parallel_state.py)."""
    plan = job.plan
    expert_ranks = plan.dp * plan.cp * plan.tp // (plan.ep * plan.etp)
    if job.scenario.model.is_moe and expert_ranks % job.replicas:
        reason = f"{job.replicas} replicas do not divide the {expert_ranks} data ranks of an expert"
        raise job.refuse("dp_shard", reason)


def export_notes(job: ExportJob) -> tuple[str, ...]:
    plan, notes = job.plan, list[str]()
    if plan.recompute is None:
        notes.append(RECOMPUTE_NOT_STATED)
    if job.zero_stage and plan.cp > 1 and plan.dp_shard == plan.dp:
        notes.append(
            f"dp_shard {plan.dp} is less than dp * cp = {plan.dp * plan.cp}: what is sharded is kept "
            f"{job.replicas} times; Megatron's own default shards over all {plan.dp * plan.cp}"
        )
    if job.zero_stage in FSDP_STAGES:
        notes.append("Megatron-FSDP needs CUDA_DEVICE_MAX_CONNECTIONS unset or above 1")
    return tuple(notes)


def _argument(name: str, value: object) -> str:
    flag = "--" + name.replace("_", "-")
    return flag if value is True else f"{flag} {shlex.quote(str(value))}"


def import_megatron(text: str, options: ImportOptions) -> Draft:
    for program, what in OTHER_SCRIPTS.items():
        if program in text:
            raise InputError("FILE", program, f"not priced: {what}; allowed: GPT and hybrid models")
    values, is_arguments = _parse(text, options)
    return draft_of_arguments(SettingsReader(values, "megatron", bare_flags=is_arguments), options)


def draft_of_arguments(settings: SettingsReader, options: ImportOptions) -> Draft:
    """From settings under Megatron's own names, wherever they were written."""
    _refuse_other_programs(settings)
    model = read_model(settings)
    layers = settings.integer("num_layers")
    degrees = _degrees(settings, options)
    micro_batch_size = options.get_micro_batch_size(settings.integer("micro_batch_size"))
    plan = stated_plan(
        degrees,
        _sharding(settings, degrees),
        ep=settings.integer(EXPERT_DEGREES["ep"]) or 1,
        etp=_expert_tensor_size(settings, degrees.tp, is_moe=options.is_moe(model)),
        micro_batch_size=micro_batch_size,
        vpp=_chunks_per_stage(settings, degrees.pp, options, layers),
        sequence_parallel=bool(settings.flag("sequence_parallel")),
        recompute=_recompute(settings),
    )
    total = options.global_batch_size or settings.integer("global_batch_size")
    return Draft(
        plan,
        _precision(settings),
        seq_len=_sequence_length(settings),
        global_batch_size=total or micro_batch_size * degrees.dp,
        num_devices=degrees.num_devices,
        model=model,
        training=_training(settings),
        notes=(*_precision_notes(settings, options), *_multimodal_notes(settings), *settings.unused_notes()),
    )


OTHER_SCRIPTS = {
    "pretrain_bert.py": "an encoder (BERT)",
    "pretrain_t5.py": "an encoder-decoder model (T5)",
    "pretrain_ict.py": "a retriever",
    "pretrain_retro.py": "RETRO",
    "pretrain_vision": "a vision model",
}
OTHER_PROGRAMS = {
    "bert_embedder_type": "BERT",
    "bert_load": "BERT",
    "retro_project_dir": "RETRO",
    "num_classes": "a classifier",
    "vision_pretraining_type": "a vision model",
    "encoder_num_layers": "an encoder-decoder model (T5)",
}
MULTIMODAL = ("language_model_type", "vision_model_type", "model_provider")
LEFT_OUT_NOTE = "the language model is planned; the vision part of the run is left out"


def _refuse_other_programs(settings: SettingsReader) -> None:
    for name, what in OTHER_PROGRAMS.items():
        if settings.has(name):
            raise InputError(f"megatron: {name}", settings.text(name), f"not priced: {what}")


def _sequence_length(settings: SettingsReader) -> int | None:
    """Of the decoder: in multimodal runs `seq_length` is that of the image."""
    names = ("decoder_seq_length", "total_seq_length", "seq_length", "encoder_seq_length")
    stated = [settings.integer(name) for name in names]
    return next(filter(None, stated), None)


def _precision_notes(settings: SettingsReader, options: ImportOptions) -> tuple[str, ...]:
    if options.precision or _precision(settings) != "fp32":
        return ()
    return ("precision fp32: the file states none of bf16, fp16 and fp8; --precision states another",)


def _multimodal_notes(settings: SettingsReader) -> tuple[str, ...]:
    tokenizer = settings.word("tokenizer_type")
    parts = [name for name in MULTIMODAL if settings.has(name)]
    return (LEFT_OUT_NOTE,) if parts or tokenizer == "MultimodalTokenizer" else ()


def _training(settings: SettingsReader) -> JsonObject:
    """Switches that change speed at the same plan."""
    dispatcher = settings.word("moe_token_dispatcher_type")
    deepep, hybridep = settings.flag("moe_enable_deepep"), settings.word("moe_flex_dispatcher_backend")
    fields: JsonObject = {}
    if dispatcher in DISPATCHERS:
        fields["moe_dispatcher"] = DISPATCHERS[dispatcher]
    if deepep or hybridep in ("deepep", "hybridep"):
        fields["moe_dispatcher"] = hybridep or "deepep"
    if settings.flag("overlap_moe_expert_parallel_comm"):
        fields["overlap_moe_communication"] = True
    if settings.flag("optimizer_cpu_offload"):
        fields["optimizer_offload"] = True
    if settings.has("moe_expert_capacity_factor"):
        fields["capacity_factor"] = settings.number("moe_expert_capacity_factor")
    for name in ("use_mcore_models", "use_flash_attn", "transformer_impl", "moe_grouped_gemm", "hybrid"):
        settings.used(name)
    return fields


def _parse(text: str, options: ImportOptions) -> tuple[JsonObject, bool]:
    """The settings by name, and whether they come from arguments (else from YAML)."""
    check_length(text)
    if "MODEL_ARGS:" not in text and has_options(text):
        return parse_arguments(text, options.variables), True
    values = parse_yaml(substitute(text, options.variables))
    arguments = values.get("MODEL_ARGS")
    if isinstance(arguments, dict):  # the functional tests and the MoE model zoo
        return {name.lstrip("-").replace("-", "_"): value for name, value in arguments.items()}, False
    return _leaves(values, depth=4), False


def _leaves(values: JsonObject, depth: int) -> JsonObject:
    """YAML files group the arguments; the names are unique without the groups."""
    leaves: JsonObject = {}
    for key, value in values.items():
        if isinstance(value, dict) and depth > 1:
            leaves |= _leaves(value, depth - 1)
        else:
            leaves[str(key).replace("-", "_")] = value
    return leaves


def _degrees(settings: SettingsReader, options: ImportOptions) -> Degrees:
    tp, pp, cp = (settings.integer(name) or 1 for name in DEGREES.values())
    # torchrun's own options count only if --num-devices does not.
    launched = options.num_devices or _launched_devices(settings)
    known = replace(options, num_devices=launched)
    return Degrees(tp, pp, cp, known.divide_devices(tp * pp * cp, "the data-parallel size follows from it"))


def _launched_devices(settings: SettingsReader) -> int | None:
    """From torchrun's own options, if the script states them as numbers."""
    counts = []
    for name in ("nproc_per_node", "nnodes"):
        try:
            counts.append(settings.integer(name))
        except InputError:  # "gpu", "auto" or a range are torchrun's business, not a mistake
            counts.append(None)
    return counts[0] * (counts[1] or 1) if counts[0] else None


def _sharding(settings: SettingsReader, degrees: Degrees) -> Sharding:
    strategy = settings.word("data_parallel_sharding_strategy", STRATEGIES) or "optim_grads_params"
    switches = [settings.flag(name) for name in ("use_megatron_fsdp", "use_custom_fsdp", "use_torch_fsdp2")]
    shards_optimizer = bool(settings.flag("use_distributed_optimizer"))
    replicas = settings.integer("num_distributed_optimizer_instances") or 1
    settings.word("ckpt_format")
    stage = STRATEGIES[strategy] if any(switches) else int(shards_optimizer)
    data_ranks = degrees.dp * degrees.cp
    if data_ranks % replicas:
        name = "megatron: num_distributed_optimizer_instances"
        raise InputError(name, replicas, f"must divide the {data_ranks} data-parallel ranks")
    if stage == 0 or data_ranks == replicas:
        return NO_SHARDING
    return Sharding(stage, data_ranks // replicas)


def _expert_tensor_size(settings: SettingsReader, tp: int, *, is_moe: bool) -> int:
    stated = settings.integer(EXPERT_DEGREES["etp"])
    # By default Megatron splits experts like the rest.
    return (stated or tp) if is_moe else 1


def _chunks_per_stage(
    settings: SettingsReader, pp: int, options: ImportOptions, layers_in_file: int | None
) -> int:
    stated = settings.integer("num_virtual_stages_per_pipeline_rank")
    size = settings.integer("virtual_pipeline_model_parallel_size")
    per_chunk = settings.integer("num_layers_per_virtual_pipeline_stage")
    layout = settings.word("pipeline_model_parallel_layout")
    ends = [bool(settings.flag(f"account_for_{end}_in_pipeline_split")) for end in ("embedding", "loss")]
    settings.used("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers")
    settings.used("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage")
    if pp == 1:
        return 1
    if layout:
        return max(1, _count_stages(layout) // pp)
    if per_chunk:
        layers = options.get_num_layers(layers_in_file) + sum(ends)
        return max(1, layers // (pp * per_chunk))
    return stated or size or 1


def _count_stages(layout: str) -> int:
    """Bars separate stages; `(tt|)*29` repeats (pipeline_parallel_layer_layout.py)."""
    groups: list[tuple[str, str]] = re.findall(r"\(([^()]*)\)\*(\d{1,4})", layout)
    repeated = sum(group.count("|") * int(times) for group, times in groups)
    stages = repeated + re.sub(r"\([^()]*\)\*\d+", "", layout).count("|") + 1
    if stages > MAX_STAGES:
        raise InputError("megatron: pipeline_model_parallel_layout", layout, f"at most {MAX_STAGES} stages")
    return stages


def _recompute(settings: SettingsReader) -> str:
    granularity = settings.word("recompute_granularity", ("full", "selective"))
    activations = settings.flag("recompute_activations")
    settings.word("recompute_method")
    settings.integer("recompute_num_layers")
    return "selective" if activations else granularity or "none"


def _precision(settings: SettingsReader) -> str:
    fp8 = settings.word("fp8_format") or settings.word("fp8")
    recipe = settings.word("fp8_recipe")
    fp4 = settings.word("fp4_format") or settings.word("fp4")
    half = [name for name in ("bf16", "fp16") if settings.flag(name)]
    if fp4:
        return "nvfp4"
    if fp8:
        return "mxfp8" if recipe == "mxfp8" else "fp8"
    return half[0] if half else "fp32"
