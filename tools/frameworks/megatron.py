"""Megatron-LM: writes the arguments of its training scripts as a bash array; reads launch scripts or YAML.

Names and defaults: megatron/training/arguments.py, TransformerConfig, ModelParallelConfig and
TrainingConfig.
"""

import shlex
from dataclasses import replace
from typing import get_args

from tools.errors import InputError
from tools.frameworks.exporting import (
    RECOMPUTE_NOT_STATED,
    Export,
    ExportJob,
    Settings,
    comment_lines,
    first_names,
)
from tools.frameworks.importing import Degrees, Draft, ImportOptions, Sharding, read_levers, stated_plan
from tools.frameworks.megatron_model import chunks_per_stage, read_model, uneven_stages
from tools.frameworks.reading import JsonObject, SettingsReader, check_length, parse_yaml
from tools.frameworks.shell import LIST_OPTIONS, has_options, parse_arguments, substitute
from tools.scenario import Plan
from tools.scenario.spec import RecomputeModule

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
RECOMPUTE_MODULES: tuple[str, ...] = get_args(RecomputeModule)
DISPATCHERS = {"alltoall": "alltoall", "alltoall_seq": "alltoall", "allgather": "allgather", "flex": "deepep"}


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
        **recompute_arguments(plan),
        **job.lever_settings,
        **({"optimizer_cpu_offload": True} if training.optimizer_offload else {}),
    }


def degree_arguments(job: ExportJob) -> Settings:
    plan = job.plan
    # Megatron's own default for experts is tp, so that 1 must be written too.
    names = DEGREES | (EXPERT_DEGREES if job.scenario.model.is_moe else {})
    sizes: Settings = {name: getattr(plan, field) for field, name in names.items()}
    return sizes | ({"sequence_parallel": True} if plan.sequence_parallel else {})


def recompute_arguments(plan: Plan) -> Settings:
    """Megatron counts the recomputed layers of a chunk (transformer_block.py), a plan those of a stage."""
    if plan.recompute == "selective":
        modules = plan.recompute_modules or ()
        return {
            "recompute_granularity": "selective",
            **({"recompute_modules": " ".join(modules)} if modules else {}),
            **({"moe_grouped_gemm": True} if "moe_act" in modules else {}),  # the only experts that have it
        }
    if plan.recompute == "full" and plan.recompute_layers:
        per_chunk = -(-plan.recompute_layers // plan.vpp)
        return {
            "recompute_granularity": "full",
            "recompute_method": "block",
            "recompute_num_layers": per_chunk,
        }
    if plan.recompute == "full":
        return {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    return {}


def _stage_arguments(job: ExportJob) -> Settings:
    uneven = uneven_stages(job, "decoder_last_pipeline_num_layers")
    if job.plan.vpp == 1 or "pipeline_model_parallel_layout" in uneven:
        return uneven  # a layout implies the chunks, and Megatron-LM takes one of the two only
    return {"num_virtual_stages_per_pipeline_rank": job.plan.vpp} | uneven


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
            "no_gradient_accumulation_fusion": True,  # it writes into a buffer that Megatron-FSDP shards
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
    if plan.recompute == "full" and plan.recompute_layers and plan.recompute_layers % plan.vpp:
        layers = recompute_arguments(plan)["recompute_num_layers"]
        notes.append(f"Megatron counts recomputed layers per chunk: {layers} in each of {plan.vpp} per stage")
    if job.zero_stage in FSDP_STAGES:
        notes.append("Megatron-FSDP needs CUDA_DEVICE_MAX_CONNECTIONS unset or above 1")
    return tuple(notes)


def _argument(name: str, value: object) -> str:
    flag = "--" + name.replace("_", "-")
    if name in LIST_OPTIONS:
        return f"{flag} {value}"
    return flag if value is True else f"{flag} {shlex.quote(str(value))}"


def import_megatron(text: str, options: ImportOptions) -> Draft:
    for program, what in OTHER_SCRIPTS.items():
        if program in text:
            raise InputError("FILE", program, f"not supported: {what}; allowed: GPT and hybrid models")
    values, is_arguments = _parse(text, options)
    return draft_of_arguments(SettingsReader(values, "megatron", bare_flags=is_arguments), options)


def draft_of_arguments(settings: SettingsReader, options: ImportOptions) -> Draft:
    """From settings under Megatron's own names, wherever they were written."""
    _refuse_other_programs(settings)
    model = read_model(settings)
    layers = settings.integer("num_layers")
    degrees = _degrees(settings, options)
    micro_batch_size = options.get_micro_batch_size(settings.integer("micro_batch_size"))
    vpp = chunks_per_stage(settings, degrees.pp, options, layers)
    plan = stated_plan(
        degrees,
        _sharding(settings, degrees),
        ep=settings.integer(EXPERT_DEGREES["ep"]) or 1,
        etp=_expert_tensor_size(settings, degrees.tp, is_moe=options.is_moe(model)),
        micro_batch_size=micro_batch_size,
        vpp=vpp,
        sequence_parallel=bool(settings.flag("sequence_parallel")),
        **_recompute(settings, vpp),
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
            raise InputError(f"megatron: {name}", settings.text(name), f"not supported: {what}")


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
    graphs = [settings.text(name) for name in ("cuda_graph_impl", "enable_cuda_graph", "external_cuda_graph")]
    fields = read_levers(settings, "megatron-core")
    if any(graphs):
        fields["cuda_graph"] = any(graph not in (None, "none", "False") for graph in graphs)
    if dispatcher in DISPATCHERS:
        fields["moe_dispatcher"] = DISPATCHERS[dispatcher]
    if deepep or hybridep in ("deepep", "hybridep"):
        fields["moe_dispatcher"] = hybridep or "deepep"
    if settings.flag("optimizer_cpu_offload"):
        fields["optimizer_offload"] = True
    if settings.has("moe_expert_capacity_factor"):
        fields["capacity_factor"] = settings.number("moe_expert_capacity_factor")
    settings.used("use_mcore_models", "use_flash_attn", "transformer_impl", "moe_grouped_gemm", "hybrid")
    settings.used("cuda_graph_scope", "cuda_graph_modules", "te_rng_tracker", "use_te_rng_tracker")
    settings.used("no_gradient_accumulation_fusion", "gradient_accumulation_fusion")
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
    return Sharding.over(stage, data_ranks // replicas)


def _expert_tensor_size(settings: SettingsReader, tp: int, *, is_moe: bool) -> int:
    stated = settings.integer(EXPERT_DEGREES["etp"])
    # By default Megatron splits experts like the rest.
    return (stated or tp) if is_moe else 1


def _recompute(settings: SettingsReader, vpp: int) -> dict[str, str | int | tuple[str, ...]]:
    """The plan's fields; blocks of whole layers are counted per chunk."""
    granularity = settings.word("recompute_granularity", ("full", "selective"))
    activations = settings.flag("recompute_activations")
    method, layers = settings.word("recompute_method"), settings.integer("recompute_num_layers", minimum=0)
    stated = settings.words("recompute_modules") or (settings.text("recompute_modules") or "").split()
    if granularity == "full" and not activations:
        return {
            "recompute": "full",
            **({"recompute_layers": layers * vpp} if method == "block" and layers else {}),
        }
    if not activations and not granularity:
        return {"recompute": "none"}
    modules = tuple(name for name in stated if name in RECOMPUTE_MODULES)
    return {"recompute": "selective", **({"recompute_modules": modules} if modules else {})}


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
