"""torchtitan: writes TOML (releases up to 0.2) and the same settings as options for 0.3; reads the TOML and
0.3's Python configuration.

Names: torchtitan/config/job_config.py.
"""

from collections.abc import Mapping

from tools.frameworks.exporting import (
    RECOMPUTE_NOT_STATED,
    Export,
    ExportJob,
    Settings,
    first_names,
    toml_text,
)
from tools.frameworks.importing import (
    Batch,
    Degrees,
    Draft,
    ImportOptions,
    Sharding,
    read_levers,
    stated_plan,
)
from tools.frameworks.python_config import VARIABLE, looks_like_python, parse_python
from tools.frameworks.reading import JsonObject, SettingsReader, parse_toml

SCHEDULES = {
    "GPipe": "gpipe",
    "1F1B": "1f1b",
    "Interleaved1F1B": "interleaved",
    "LoopedBFS": "gpipe",
    "InterleavedZeroBubble": "zero_bubble",
    "ZBVZeroBubble": "zero_bubble",
    "DualPipeV": "zero_bubble",
}
SINGLE_CHUNK_SCHEDULES = ("GPipe", "1F1B")
V_SCHEDULE = "ZBVZeroBubble"
"""The zero-bubble schedule with exactly two chunks per stage."""
DTYPES = {"float32": "fp32", "bfloat16": "bf16"}
QUANTIZED_DTYPE = "bfloat16"
CONVERTERS = {"quantize.linear.float8": "fp8", "quantize.linear.mx": "mxfp8"}
PRECISIONS = (*DTYPES.values(), *CONVERTERS.values(), "nvfp4")  # nvfp4 by the configuration function alone
DEFAULT_LOCAL_BATCH_SIZE = 8
DEFAULT_SEQ_LEN = 2048


def export_torchtitan(job: ExportJob) -> Export:
    _refuse_unsupported(job)
    tables = {
        "training": _training(job),
        "parallelism": _parallelism(job),
        "activation_checkpoint": _activation_checkpoint(job),
    }
    comments = (
        "torchtitan 0.2 reads this file: torchrun ... -m torchtitan.train --job.config_file FILE",
        "torchtitan 0.3 takes the same as options, behind --module NAME --config FUNCTION:",
        *_options(job, tables),
    )
    for name, value in job.lever_settings.items():
        table, _, key = name.partition(".")
        tables[table] = {**tables.get(table, {}), key: value}
    if converter := first_names(CONVERTERS).get(job.scenario.training.precision):
        tables["model"] = {"converters": [converter]}
    filled = {name: table for name, table in tables.items() if table}
    return Export("torchtitan", "torchtitan.toml", toml_text(comments, filled), _notes(job))


def _refuse_unsupported(job: ExportJob) -> None:
    plan = job.plan
    if job.scenario.training.precision not in PRECISIONS:
        raise job.refuse_precision("torchtitan", PRECISIONS)
    if plan.etp > 1 and job.scenario.model.is_moe:
        raise job.refuse("etp", "torchtitan 0.3 has no tensor parallelism inside an expert; must be 1")
    if job.zero_stage == 0 and plan.cp > 1:
        reason = f"torchtitan always shards over the context-parallel ranks (cp {plan.cp}); must be 2 or 3"
        raise job.refuse("zero_stage", reason)
    if job.zero_stage == 0 and plan.tp % plan.ep:
        reason = f"experts live in the ranks that shard: zero_stage 0 leaves tp ({plan.tp}); must divide it"
        raise job.refuse("ep", reason)


def _training(job: ExportJob) -> Settings:
    training, plan = job.scenario.training, job.plan
    # A pipeline takes all micro-batches of a step at once; without one they are accumulated.
    local = training.global_batch_size // plan.dp if plan.pp > 1 else plan.micro_batch_size
    return {
        "local_batch_size": local,
        "global_batch_size": training.global_batch_size,
        "seq_len": training.seq_len,
        "mixed_precision_param": first_names(DTYPES).get(training.precision, QUANTIZED_DTYPE),
    }


def _parallelism(job: ExportJob) -> Settings:
    plan = job.plan
    # The axis that shards is this degree times cp (torchtitan/distributed/parallel_dims.py).
    shard = plan.dp_shard // plan.cp if job.zero_stage else 1
    settings: Settings = {
        "data_parallel_replicate_degree": plan.dp // shard,
        "data_parallel_shard_degree": shard,
        "fsdp_reshard_after_forward": "always" if job.zero_stage != 2 else "never",
        "tensor_parallel_degree": plan.tp,
        "context_parallel_degree": plan.cp,
        "expert_parallel_degree": plan.ep,
        "pipeline_parallel_degree": plan.pp,
    }
    if plan.tp > 1 and not plan.sequence_parallel:
        settings["enable_sequence_parallel"] = False
    return settings | (_pipeline(job) if plan.pp > 1 else {})


def _pipeline(job: ExportJob) -> Settings:
    plan = job.plan
    name = first_names(SCHEDULES)[plan.schedule]
    if SCHEDULES[name] == SCHEDULES[V_SCHEDULE] and plan.vpp == 2:
        name = V_SCHEDULE
    if name == "GPipe" and plan.vpp > 1:
        raise job.refuse("vpp", "torchtitan runs gpipe with one chunk per stage; must be 1")
    return {
        "pipeline_parallel_schedule": name,
        "pipeline_parallel_microbatch_size": plan.micro_batch_size,
        **_layer_split(job),
    }


def _layer_split(job: ExportJob) -> Settings:
    """torchtitan takes the layers per chunk, with or without embedding and loss, and derives the chunks."""
    plan, layers = job.plan, job.scenario.model.num_hidden_layers
    chunks = plan.pp * plan.vpp
    for less_layers in (1, 0):
        slots = layers + 2 * less_layers
        per_chunk = -(-slots // chunks)
        if -(-slots // per_chunk) == chunks and slots // chunks >= less_layers:
            ends = ("first", "last") if less_layers == 0 else ()
            return {
                "pipeline_parallel_layers_per_stage": per_chunk,
                **{f"pipeline_parallel_{end}_stage_less_layers": 0 for end in ends},
            }
    reason = f"torchtitan has no setting that splits {layers} layers into pp * vpp = {chunks} chunks"
    raise job.refuse("vpp", reason)


def _activation_checkpoint(job: ExportJob) -> Settings:
    if job.plan.recompute is None:
        return {}
    selective: Settings = {"selective_ac_option": "op"} if job.plan.recompute == "selective" else {}
    return {"mode": job.plan.recompute, **selective}


def _options(job: ExportJob, tables: Mapping[str, Settings]) -> tuple[str, ...]:
    """The settings as torchtitan 0.3 takes them; its recomputation is a subcommand and comes last."""
    options = [
        f"  --{table}.{_option(key, value)}"
        for table in ("training", "parallelism")
        for key, value in tables[table].items()
    ]
    # torchtitan/trainer.py of 0.3 refuses its default, CUDA graphs, with a pipeline and most expert kernels.
    if job.plan.pp > 1 or job.plan.ep > 1 or job.scenario.training.cuda_graph is False:
        options.append("  --training.disable_cuda_graphs")
    if "compile.enable" in job.lever_settings:  # async tensor parallelism, which 0.3 has moved
        options.append("  --compile.enable --compile.enable_async_tensor_parallel")
    mode = tables["activation_checkpoint"].get("mode")
    return (*options, *([f"  activation_checkpoint:{mode}"] if mode else []))


def _option(key: str, value: object) -> str:
    if isinstance(value, bool):
        return key if value else key.replace("enable_", "no-enable_", 1)
    return f"{key} {value}"


def _notes(job: ExportJob) -> tuple[str, ...]:
    notes = []
    precision = job.scenario.training.precision
    if job.plan.recompute is None:
        notes.append(RECOMPUTE_NOT_STATED)
    if precision not in DTYPES.values():
        notes.append(
            f"torchtitan 0.3 takes {precision} from the configuration function (a converter of the model), "
            "not from an option: choose one that has it"
        )
    if "parallelism.expert_parallel_comm_backend" in job.lever_settings:
        notes.append("torchtitan 0.3 takes the token dispatcher from the configuration function too")
    if job.plan.tp > 1 and not job.plan.sequence_parallel:
        notes.append("enable_sequence_parallel needs torchtitan 0.3; 0.2 always splits the sequence")
    return tuple(notes)


def import_torchtitan(text: str, options: ImportOptions) -> Draft:
    is_python = looks_like_python(text)
    values = parse_python(text, options.variables.get(VARIABLE)) if is_python else parse_toml(text)
    settings = SettingsReader(values, "torchtitan")
    degrees, shard_ranks = _degrees(settings, options)
    batch = _batch(settings, degrees)
    schedule, vpp = _schedule(settings, degrees.pp, options)
    etp = settings.integer("parallelism.expert_tensor_parallel_degree")
    sequence_parallel = settings.flag("parallelism.enable_sequence_parallel")
    plan = stated_plan(
        degrees,
        _sharding(settings, shard_ranks, degrees.pp),
        ep=_degree(settings, "expert_parallel"),
        micro_batch_size=batch.micro_batch_size,
        vpp=vpp,
        sequence_parallel=True if sequence_parallel is None else sequence_parallel,
        recompute=_recompute(settings),
        **({"schedule": schedule} if schedule else {}),
        **({"etp": etp} if etp else {}),
    )
    return Draft(
        plan,
        _precision(settings),
        seq_len=_sequence_length(settings),
        global_batch_size=batch.global_batch_size,
        num_devices=degrees.num_devices,
        training=_switches(settings),
        model_name=" ".join(filter(None, (settings.text("model.name"), settings.text("model.flavor")))),
        notes=settings.unused_notes(),
    )


def _switches(settings: SettingsReader) -> JsonObject:
    fields = read_levers(settings, "torchtitan")
    if settings.flag("training.enable_cpu_offload"):
        fields["optimizer_offload"] = True
    if settings.flag("compile.enable_async_tensor_parallel"):
        fields["overlap_tensor_communication"] = True
    if settings.flag("training.disable_cuda_graphs"):
        fields["cuda_graph"] = False
    return fields


def _sequence_length(settings: SettingsReader) -> int:
    names = ("training.seq_len", "training.max_context_length")
    return next(filter(None, [settings.integer(name) for name in names]), DEFAULT_SEQ_LEN)


def _degree(settings: SettingsReader, name: str) -> int:
    return settings.integer(f"parallelism.{name}_degree") or 1


def _degrees(settings: SettingsReader, options: ImportOptions) -> tuple[Degrees, int]:
    """The degrees, and the ranks that share what is sharded."""
    tp, pp = _degree(settings, "tensor_parallel"), _degree(settings, "pipeline_parallel")
    cp, replicate = _degree(settings, "context_parallel"), _degree(settings, "data_parallel_replicate")
    shard = settings.integer("parallelism.data_parallel_shard_degree", minimum=-1) or -1
    if shard == -1:
        why = "data_parallel_shard_degree -1 takes the devices that are left"
        shard = options.divide_devices(tp * pp * cp * replicate, why)
    return Degrees(tp, pp, cp, replicate * shard), shard * cp


def _sharding(settings: SettingsReader, shard_ranks: int, pp: int) -> Sharding:
    name = "parallelism.fsdp_reshard_after_forward"
    policy = settings.word(name, ("default", "always", "never")) or "default"
    # By default weights stay gathered under a pipeline (torchtitan/distributed/fsdp.py).
    keeps_weights = policy == "never" or (policy == "default" and pp > 1)
    return Sharding.over(2 if keeps_weights else 3, shard_ranks)


def _batch(settings: SettingsReader, degrees: Degrees) -> Batch:
    seq_len = _sequence_length(settings)
    local = settings.integer("training.local_batch_size") or DEFAULT_LOCAL_BATCH_SIZE
    in_pipeline = settings.integer("parallelism.pipeline_parallel_microbatch_size") or 1
    total = settings.integer("training.global_batch_size", minimum=-1)
    # Later releases count tokens, and the pipeline's micro-batches.
    if tokens := settings.integer("training.num_tokens_per_microbatch_per_dp_rank"):
        local = max(tokens // seq_len, 1)
    if pieces := settings.integer("parallelism.num_pp_microbatches"):
        in_pipeline = max(local // pieces, 1)
    tokens_per_step = settings.integer("training.num_tokens_per_train_step", minimum=-1) or -1
    if tokens_per_step > 0:
        total = tokens_per_step // seq_len
    return Batch(
        micro_batch_size=in_pipeline if degrees.pp > 1 else local,
        global_batch_size=total if total and total > 0 else local * degrees.dp,
    )


def _schedule(settings: SettingsReader, pp: int, options: ImportOptions) -> tuple[str | None, int]:
    """The schedule, None without a pipeline, and the chunks per stage."""
    name = settings.word("parallelism.pipeline_parallel_schedule", SCHEDULES) or "1F1B"
    per_chunk = settings.integer("parallelism.pipeline_parallel_layers_per_stage")
    first, last = (
        settings.integer(f"parallelism.pipeline_parallel_{end}_stage_less_layers", minimum=0)
        for end in ("first", "last")
    )
    if pp == 1:
        return None, 1
    if name in SINGLE_CHUNK_SCHEDULES:
        return SCHEDULES[name], 1
    if per_chunk is None:
        return SCHEDULES[name], 2
    slots = options.get_num_layers() + (1 if first is None else first) + (1 if last is None else last)
    return SCHEDULES[name], max(1, -(-slots // per_chunk) // pp)


def _recompute(settings: SettingsReader) -> str:
    mode = settings.word("activation_checkpoint.mode", ("none", "selective", "full", "memory_budget"))
    settings.word("activation_checkpoint.selective_ac_option")
    return "selective" if mode in (None, "memory_budget") else mode


def _precision(settings: SettingsReader) -> str:
    dtype = settings.word("training.mixed_precision_param", DTYPES) or "bfloat16"
    for converter in settings.words("model.converters"):
        for name, precision in {**CONVERTERS, "quantize.linear.nvfp4": "nvfp4"}.items():
            short = name.rpartition(".")[2]
            if converter == short or converter.endswith(f"linear.{short}"):
                return precision
    return DTYPES[dtype]
