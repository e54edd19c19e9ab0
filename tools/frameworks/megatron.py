"""Megatron-LM: writes the arguments of its training scripts as a bash array; reads launch scripts or YAML.

Names and defaults: megatron/training/arguments.py, TransformerConfig, ModelParallelConfig and
TrainingConfig.
"""

import shlex
from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

from pydantic import JsonValue

from tools.errors import InputError
from tools.frameworks.exporting import (
    RECOMPUTE_NOT_STATED,
    ExportJob,
    SettingsTree,
    comment_lines,
    first_names,
)
from tools.frameworks.format import LIKELY, SURE, Format, Keys, UnknownFile
from tools.frameworks.huggingface import MODEL_MARKS
from tools.frameworks.importing import Draft, ImportOptions, TrainingFields, read_levers, stated_plan
from tools.frameworks.megatron_model import chunks_per_stage, read_model, uneven_stages
from tools.frameworks.reading import SettingsReader, check_length, parse_text
from tools.frameworks.shell import LIST_OPTIONS, has_options, parse_arguments, substitute
from tools.scenario import Plan
from tools.scenario.spec import GraphScope, PrecisionScope, RecomputeModule

MARKED_OPTIONS = ("--num-layers", "--tensor-model-parallel-size", "--micro-batch-size", "--hidden-size")
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
# Current scaling, as Megatron-Bridge's recipes: with delayed scaling no layer stays in bf16 and no activation
# function is recomputed.
PRECISION_ARGUMENTS: dict[str, SettingsTree] = {
    "fp32": {},
    "fp16": {"fp16": True},
    "bf16": {"bf16": True},
    "fp8": {"bf16": True, "fp8_format": "hybrid", "fp8_recipe": "tensorwise"},
    "mxfp8": {"bf16": True, "fp8_format": "e4m3", "fp8_recipe": "mxfp8"},
    "nvfp4": {"bf16": True, "fp4_format": "e2m1"},
}
DISPATCHERS = {"alltoall": "alltoall", "alltoall_seq": "alltoall", "allgather": "allgather", "flex": "deepep"}
SAID = (
    "cuda_graph_scopes", "capacity_factor", "activation_offload", "precision_scope", "optimizer_state",
    "gradient_dtype",
)  # fmt: skip
STATE_TYPES = {"bf16": "bf16", "bfloat16": "bf16", "fp32": "fp32", "float32": "fp32"}
MEGATRON_DEFAULTS: TrainingFields = {
    "cuda_graph": "none", "optimizer_state": "fp32", "overlap_tensor_communication": False,
}  # fmt: skip
"""megatron/training/arguments.py; gradients of bf16 are added up and reduced in fp32."""
OFFLOADED_MODULES = ("core_attn", "attn_proj")
OFFLOADED_EXPERT_MODULES = ("expert_fc1", "moe_act")
LOW_PRECISIONS = ("fp8", "mxfp8", "nvfp4")
NEVER_QUANTIZED = frozenset({"lm_head", "router"})
"""Products that Megatron keeps in bf16 by itself."""
LENGTHS = ("decoder_seq_length", "total_seq_length", "seq_length", "encoder_seq_length")
"""The decoder's comes first: in multimodal runs `seq_length` is that of the image."""
OTHER_SCRIPTS = {
    "pretrain_bert.py": "an encoder (BERT)",
    "pretrain_t5.py": "an encoder-decoder model (T5)",
    "pretrain_ict.py": "a retriever",
    "pretrain_retro.py": "RETRO",
    "pretrain_vision": "a vision model",
    "impl/convert.py": "a conversion of checkpoints",
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
CHUNKS = ("num_virtual_stages_per_pipeline_rank", "virtual_pipeline_model_parallel_size")
FP32_NOTE = "precision fp32: the file states none of bf16, fp16 and fp8; training.precision states another"


class Megatron(Format):
    name = "megatron"
    aliases = ("megatron-core", "megatron-lm")
    framework = "megatron-core"
    reads = "a launch script, YAML of arguments or MODEL_ARGS, with variables"
    writes = "arguments of Megatron-LM's scripts, as a bash array"
    file_name = "megatron-args.sh"
    judged_by = "megatron-core 0.16.1"
    has_levers = True
    says = SAID
    carries = ("recompute_layers", "recompute_modules")
    is_flat = True

    def settings(self, job: ExportJob, names: Keys) -> SettingsTree:
        return respelled(super().settings(job, names), job, names)

    def certainty(self, file: UnknownFile) -> int:
        if file.kind == "script":
            return SURE if any(option in file.text for option in MARKED_OPTIONS) else 0
        if "MODEL_ARGS" in file.keys:
            return SURE
        is_own = file.has_any(DEGREES["tp"], "num_layers", "language_model")
        return LIKELY if is_own and not file.has_any(*MODEL_MARKS) else 0

    def write(self, job: ExportJob) -> tuple[str, tuple[str, ...]]:
        """Arguments only: model, data and optimizer stay in the launch script."""
        training, plan, cluster = job.scenario.training, job.plan, job.scenario.cluster
        job.check_precision("Megatron-LM", PRECISION_ARGUMENTS)
        stages = uneven_stages(job, "decoder_last_pipeline_num_layers")
        if plan.vpp > 1 and "pipeline_model_parallel_layout" not in stages:  # it takes one of the two
            stages = {"num_virtual_stages_per_pipeline_rank": plan.vpp} | stages
        sharding: SettingsTree = {}
        if job.zero_stage:
            check_replicas(job)
            sharding["use_distributed_optimizer"] = True
        if job.zero_stage in FSDP_STAGES:
            sharding |= {
                "use_megatron_fsdp": True,
                "data_parallel_sharding_strategy": FSDP_STRATEGIES[job.zero_stage],
                "ckpt_format": "fsdp_dtensor",  # the only format that Megatron-FSDP saves in
                "no_gradient_accumulation_fusion": True,  # it writes into a buffer that Megatron-FSDP shards
            }
        if job.zero_stage and job.replicas > 1:
            sharding["num_distributed_optimizer_instances"] = job.replicas
        # By Megatron's own names with underscores; True is a flag.
        arguments: SettingsTree = {
            **degree_arguments(job),
            **stages,
            **sharding,
            "micro_batch_size": plan.micro_batch_size,
            "global_batch_size": training.global_batch_size,
            "seq_length": training.seq_len,
            **PRECISION_ARGUMENTS[training.precision],
            **recompute_arguments(plan),
            **job.lever_settings,
            **setting_arguments(job),
        }
        rows = ""
        for name, value in arguments.items():
            words = value if name in LIST_OPTIONS else shlex.quote(str(value))
            rows += f"    --{name.replace('_', '-')}{'' if value is True else f' {words}'}\n"
        comments = (
            f"Megatron-LM arguments for {cluster.num_devices} devices, {cluster.devices_per_node} per node.",
            'Use: source megatron-args.sh; torchrun ... pretrain_gpt.py "${ASAP_ARGS[@]}" ...',
        )
        return f"{comment_lines(comments)}ASAP_ARGS=(\n{rows})\n", export_notes(job)

    def read(self, text: str, options: ImportOptions) -> Draft:
        for program, what in OTHER_SCRIPTS.items():
            if program in text:
                raise InputError("text", program, f"not supported: {what}; allowed: GPT and hybrid models")
        check_length(text)
        if "MODEL_ARGS:" not in text and has_options(text):
            arguments = parse_arguments(text, options.variables)
            return _whole(draft_of_arguments(SettingsReader(arguments, "megatron", bare_flags=True), options))
        values = parse_text(substitute(text, options.variables), "YAML")
        model = values.get("MODEL_ARGS")  # the functional tests and the MoE model zoo
        if isinstance(model, dict):
            named = {name.lstrip("-").replace("-", "_"): value for name, value in model.items()}
            if any(name.startswith(("trainer.", "model.config.")) for name in named):
                rule = "not supported: changes to a NeMo recipe that is elsewhere"
                raise InputError("text", "MODEL_ARGS", rule)
        else:
            named = dict(_leaves(values, depth=4))
        return self.read_settings(SettingsReader(named, self.name), options)

    def read_settings(self, settings: SettingsReader, options: ImportOptions) -> Draft:
        return _whole(draft_of_arguments(settings, options))


def _whole(draft: Draft) -> Draft:
    """With what Megatron-LM does where its arguments are silent: a recipe, which the cost model would take,
    does not fill them in."""
    silent: TrainingFields = {**MEGATRON_DEFAULTS}
    if draft.precision != "fp16":
        silent["gradient_dtype"] = "fp32"
    if getattr(draft.plan, "zero_stage", 0) not in FSDP_STAGES:  # FSDP overlaps by itself
        silent["overlap_gradient_communication"] = False
    return replace(draft, training={**silent, **draft.training})


def respelled(settings: SettingsTree, job: ExportJob, names: Keys) -> SettingsTree:
    """By the older names of the same things, if a file has them."""
    plan, ends = job.plan, [name for name in settings if name.rpartition(".")[2].startswith("account_for_")]
    layers = job.scenario.model.num_hidden_layers + len(ends)
    for name in {*CHUNKS} & settings.keys():
        if "num_layers_per_virtual_pipeline_stage" in names and layers % (plan.pp * plan.vpp) == 0:
            settings["num_layers_per_virtual_pipeline_stage"] = layers // (plan.pp * plan.vpp)
            del settings[name]
        elif other := next((chunks for chunks in CHUNKS if chunks in names), None):
            settings[other] = settings.pop(name)
    if "recompute_activations" in names and settings.get("recompute_granularity") == "selective":
        del settings["recompute_granularity"]
        settings["recompute_activations"] = True
    return settings


def degree_arguments(job: ExportJob) -> SettingsTree:
    plan = job.plan
    # Megatron's own default for experts is tp, so that 1 must be written too.
    names = DEGREES | (EXPERT_DEGREES if job.scenario.model.is_moe else {})
    sizes: SettingsTree = {name: getattr(plan, field) for field, name in names.items()}
    return sizes | ({"sequence_parallel": True} if plan.sequence_parallel else {})


def recompute_arguments(plan: Plan) -> SettingsTree:
    """Megatron counts the recomputed layers of a chunk (transformer_block.py), a plan those of a stage."""
    if plan.recompute == "selective":
        modules = plan.recompute_modules or ()
        return {
            "recompute_granularity": "selective",
            **({"recompute_modules": " ".join(modules)} if modules else {}),
            **({"moe_grouped_gemm": True} if "moe_act" in modules else {}),  # the only experts that have it
        }
    if plan.recompute != "full":
        return {}
    method = "block" if plan.recompute_layers else "uniform"
    per_chunk = -(-plan.recompute_layers // plan.vpp) if plan.recompute_layers else 1
    return {"recompute_granularity": "full", "recompute_method": method, "recompute_num_layers": per_chunk}


def setting_arguments(job: ExportJob) -> SettingsTree:
    """What the scenario states beside plan and levers; `setting_notes` says what of it Megatron cannot."""
    t, arguments = job.scenario.training, SettingsTree()
    graphed = str(job.lever_settings.get("cuda_graph_scope", "")).split()
    if graphed and t.cuda_graph == "scoped" and t.cuda_graph_scopes:
        arguments["cuda_graph_scope"] = " ".join(t.cuda_graph_scopes)
    elif t.capacity_factor and "moe_preprocess" in graphed:  # it waits for the counts of tokens
        arguments["cuda_graph_scope"] = " ".join(name for name in graphed if name != "moe_preprocess")
    if t.capacity_factor and job.scenario.model.is_moe:
        arguments["moe_expert_capacity_factor"] = t.capacity_factor
    last = t.precision_scope.bf16_last_layers if t.precision_scope and t.precision in LOW_PRECISIONS else 0
    if 0 < last <= job.scenario.model.num_hidden_layers // job.plan.pp:  # TransformerConfig: of one stage
        arguments |= {"first_last_layers_bf16": True, "num_layers_at_start_in_bf16": 0}
        arguments["num_layers_at_end_in_bf16"] = last
    # Low precision is priced with gradients of 16 bits, as NVIDIA's recipes have them.
    gradients = t.gradient_dtype or ("bf16" if t.precision in LOW_PRECISIONS else None)
    # Only the distributed optimizer keeps its state in other types; fp32 is what Megatron does by itself.
    if t.optimizer_state == "bf16" and job.zero_stage:
        arguments |= dict.fromkeys(("exp_avg_dtype", "exp_avg_sq_dtype"), "bf16")
        arguments |= {"use_precision_aware_optimizer": True, "main_grads_dtype": gradients or "fp32"}
    if gradients == "bf16":
        arguments["grad_reduce_in_bf16"] = True
    elif gradients and t.precision == "fp16":
        arguments["accumulate_allreduce_grads_in_fp32"] = True
    return arguments | _offload_arguments(job)


def _offload_arguments(job: ExportJob) -> SettingsTree:
    """Whole layers without a pipeline and recomputation (TransformerConfig), else the largest modules."""
    plan, model, offload = job.plan, job.scenario.model, job.scenario.training.activation_offload
    if not offload or plan.recompute == "full":
        return {}
    if plan.pp == 1 and plan.recompute != "selective":
        most = model.num_hidden_layers - 1  # Megatron keeps the last one
        count = most if offload is True else min(offload, most)
        return {"cpu_offloading_num_layers": count} if count else {}
    modules = (*OFFLOADED_MODULES, *(OFFLOADED_EXPERT_MODULES if model.is_moe else ()))
    kept = [name for name in modules if name not in (plan.recompute_modules or ())]
    return {"fine_grained_activation_offloading": True, "offload_modules": " ".join(kept)}


def setting_notes(job: ExportJob) -> list[str]:
    t, arguments = job.scenario.training, setting_arguments(job)
    scope, offloaded = t.precision_scope or PrecisionScope(), arguments.get("offload_modules")
    modules = ", ".join(sorted({*scope.bf16, *scope.mxfp8} - ({*scope.bf16} & NEVER_QUANTIZED)))
    has_layers, has_offload = "first_last_layers_bf16" in arguments, "cpu_offloading_num_layers" in arguments
    notes = (
        (scope.bf16_last_layers and not has_layers, "bf16_last_layers of precision_scope is left out: it is "
         "for fp8, mxfp8 and nvfp4, and for no more layers than a stage has"),
        (modules, f"precision_scope of {modules} is left out: it stands in a --te-precision-config-file"),
        (t.optimizer_state == "bf16" and not job.zero_stage, "optimizer_state bf16 is left out: it needs the "
         "distributed optimizer (zero_stage 1)"),
        (t.activation_offload and not (has_offload or offloaded), "activation_offload is left out: not with "
         "full recompute, and not for the last layer"),
        (offloaded, "activation_offload: with a pipeline or recomputation Megatron offloads modules, not "
         f"layers ({offloaded}); Transformer Engine from 2.10 on needs NVTE_CPU_OFFLOAD_V1=1"),
    )  # fmt: skip
    return [note for applies, note in notes if applies]


def check_replicas(job: ExportJob) -> None:
    """The replicas of what is sharded must divide the data ranks of the experts too (parallel_state.py)."""
    plan = job.plan
    expert_ranks = plan.dp * plan.cp * plan.tp // (plan.ep * plan.etp)
    if job.scenario.model.is_moe and expert_ranks % job.replicas:
        reason = f"{job.replicas} replicas do not divide the {expert_ranks} data ranks of an expert"
        raise job.refuse("dp_shard", reason)


def export_notes(job: ExportJob) -> tuple[str, ...]:
    plan = job.plan
    notes = [*([] if plan.recompute else [RECOMPUTE_NOT_STATED]), *setting_notes(job)]
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


def draft_of_arguments(settings: SettingsReader, options: ImportOptions) -> Draft:
    """From settings under Megatron's own names, wherever they were written."""
    for name, what in OTHER_PROGRAMS.items():
        if settings.has(name):
            raise InputError(f"megatron: {name}", settings.text(name), f"not supported: {what}")
    model = read_model(settings)
    layers = settings.integer("num_layers")
    tp, pp, cp = (settings.integer(name) or 1 for name in DEGREES.values())
    known = replace(options, num_devices=options.num_devices or _launched_devices(settings))
    dp = known.divide_devices(tp * pp * cp, "the data-parallel size follows from it")
    micro = options.get_micro_batch_size(settings.integer("micro_batch_size"))
    vpp = chunks_per_stage(settings, pp, options, layers)
    strategy = settings.word("data_parallel_sharding_strategy", STRATEGIES) or "optim_grads_params"
    switches = [settings.flag(name) for name in ("use_megatron_fsdp", "use_custom_fsdp", "use_torch_fsdp2")]
    shards_optimizer = bool(settings.flag("use_distributed_optimizer"))
    replicas = settings.integer("num_distributed_optimizer_instances") or 1
    settings.word("ckpt_format")
    if dp * cp % replicas:
        rule = f"must divide the {dp * cp} data-parallel ranks"
        raise InputError("megatron: num_distributed_optimizer_instances", replicas, rule)
    etp = settings.integer(EXPERT_DEGREES["etp"]) or tp  # by default Megatron splits experts like the rest
    plan = stated_plan(
        (tp, pp, cp, dp),
        STRATEGIES[strategy] if any(switches) else int(shards_optimizer),
        dp * cp // replicas,
        ep=settings.integer(EXPERT_DEGREES["ep"]) or 1,
        etp=etp if options.is_moe(model) else 1,
        micro_batch_size=micro,
        vpp=vpp,
        sequence_parallel=bool(settings.flag("sequence_parallel")),
        **_recompute(settings, vpp),
    )
    total = options.global_batch_size or settings.integer("global_batch_size")
    precision = _precision(settings)
    parts, tokenizer = [name for name in MULTIMODAL if settings.has(name)], settings.word("tokenizer_type")
    others = [
        name for name in _listed(settings, "recompute_modules") if name not in get_args(RecomputeModule)
    ]
    return Draft(
        plan,
        precision,
        seq_len=next(filter(None, [settings.integer(name) for name in LENGTHS]), None),
        global_batch_size=total or micro * dp,
        model=model,
        training=_training(settings, options, precision),
        notes=(
            *(() if options.precision or precision != "fp32" else (FP32_NOTE,)),
            *((LEFT_OUT_NOTE,) if parts or tokenizer == "MultimodalTokenizer" else ()),
            *((f"recompute_modules: not priced: {', '.join(others)}",) if others else ()),
        ),
        unused=settings.unused(),
    )


def _training(settings: SettingsReader, options: ImportOptions, precision: str) -> TrainingFields:
    """Switches that change speed at the same plan."""
    dispatcher = settings.word("moe_token_dispatcher_type")
    deepep, hybridep = settings.flag("moe_enable_deepep"), settings.word("moe_flex_dispatcher_backend")
    graphs = [settings.text(name) for name in ("cuda_graph_impl", "enable_cuda_graph", "external_cuda_graph")]
    fields = read_levers(settings, "megatron-core")
    scopes = _listed(settings, "cuda_graph_scope") or _listed(settings, "cuda_graph_modules")
    if any(graphs):
        is_graphed = any(graph not in (None, "none", "False") for graph in graphs)
        whole = "full" if "full_iteration" in (*scopes, *graphs) else "scoped"
        fields["cuda_graph"] = whole if is_graphed else "none"
        if fields["cuda_graph"] == "scoped" and (known := [s for s in scopes if s in get_args(GraphScope)]):
            fields["cuda_graph_scopes"] = tuple(known)
    if dispatcher in DISPATCHERS:
        fields["moe_dispatcher"] = DISPATCHERS[dispatcher]
    is_flexible = DISPATCHERS.get(dispatcher or "flex") == "deepep"  # else a backend means nothing
    if is_flexible and (deepep or hybridep in ("deepep", "hybridep")):
        fields["moe_dispatcher"] = hybridep or "deepep"
    if settings.flag("optimizer_cpu_offload"):
        fields["optimizer_offload"] = True
    if settings.has("moe_expert_capacity_factor"):
        fields["capacity_factor"] = settings.number("moe_expert_capacity_factor")
    if settings.flag("moe_router_force_load_balancing") is False:
        fields["routing"] = "natural"
    fields |= _state_types(settings) | _offloaded(settings, options)
    bf16_layers = sum(
        (1 if count is None else count)  # TransformerConfig's own default
        for end in ("start", "end")
        for count in [settings.integer(f"num_layers_at_{end}_in_bf16", minimum=0)]
    )
    if settings.flag("first_last_layers_bf16") and precision in LOW_PRECISIONS and bf16_layers:
        fields["precision_scope"] = PrecisionScope(bf16_last_layers=bf16_layers)
    settings.used("no_check_for_nan_in_loss_and_grad", "moe_expert_rank_capacity_factor", "moe_paged_stash")
    settings.used("check_for_nan_in_grad", "use_transformer_engine_op_fuser")
    settings.used("use_mcore_models", "use_flash_attn", "transformer_impl", "moe_grouped_gemm", "hybrid")
    settings.used("te_rng_tracker", "use_te_rng_tracker")
    settings.used("no_gradient_accumulation_fusion", "gradient_accumulation_fusion")
    return fields


def _state_types(settings: SettingsReader) -> TrainingFields:
    """Types of the optimizer's state and of the gradients, where the file states them."""
    first, second, main = (
        STATE_TYPES.get((settings.text(name) or "").removeprefix("torch."))
        for name in ("exp_avg_dtype", "exp_avg_sq_dtype", "main_grads_dtype")
    )
    is_aware = settings.flag("use_precision_aware_optimizer")
    short, whole = settings.flag("grad_reduce_in_bf16"), settings.flag("accumulate_allreduce_grads_in_fp32")
    reduces_whole = settings.flag("grad_reduce_in_fp32")  # Megatron-Bridge's name
    fields: TrainingFields = {}
    if first and first == second and (is_aware or first == "fp32"):
        fields["optimizer_state"] = first
    if short or reduces_whole is False or (is_aware and main == "bf16"):
        fields["gradient_dtype"] = "bf16"
    elif whole or reduces_whole:
        fields["gradient_dtype"] = "fp32"
    return fields


def _offloaded(settings: SettingsReader, options: ImportOptions) -> TrainingFields:
    """Activations on the host: layers, or modules of every layer."""
    count = settings.integer("cpu_offloading_num_layers", minimum=0)
    by_module, activations = (
        settings.flag(name) for name in ("fine_grained_activation_offloading", "cpu_offloading_activations")
    )
    settings.used("cpu_offloading", "cpu_offloading_weights", "offload_modules")
    if by_module:
        return {"activation_offload": True}
    if not count or activations is False:
        return {}
    most = options.get_num_layers(settings.integer("num_layers")) - 1
    return {"activation_offload": count if count < most else True}


def _leaves(value: JsonValue, depth: int, name: str = "") -> Iterator[tuple[str, JsonValue]]:
    """YAML files group the arguments; the names are unique without the groups."""
    if isinstance(value, dict) and depth:
        for key, inner in value.items():
            yield from _leaves(inner, depth - 1, str(key).replace("-", "_"))
    else:
        yield name, value


def _launched_devices(settings: SettingsReader) -> int | None:
    """From torchrun's own options, if the script states them as numbers."""
    counts = []
    for name in ("nproc_per_node", "nnodes"):
        try:
            counts.append(settings.integer(name))
        except InputError:  # "gpu", "auto" or a range are torchrun's business, not a mistake
            counts.append(None)
    return counts[0] * (counts[1] or 1) if counts[0] else None


def _recompute(settings: SettingsReader, vpp: int) -> dict[str, str | int | tuple[str, ...]]:
    """The plan's fields; blocks of whole layers are counted per chunk."""
    granularity = settings.word("recompute_granularity", ("full", "selective"))
    activations = settings.flag("recompute_activations")
    method, layers = settings.word("recompute_method"), settings.integer("recompute_num_layers", minimum=0)
    stated = _listed(settings, "recompute_modules")
    if granularity == "full" and not activations:
        block = {"recompute_layers": layers * vpp} if method == "block" and layers else {}
        return {"recompute": "full", **block}
    if not activations and not granularity:
        return {"recompute": "none"}
    modules = tuple(name for name in stated if name in get_args(RecomputeModule))
    return {"recompute": "selective", **({"recompute_modules": modules} if modules else {})}


def _listed(settings: SettingsReader, name: str) -> list[str]:
    return settings.words(name) or (settings.text(name) or "").split()


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
