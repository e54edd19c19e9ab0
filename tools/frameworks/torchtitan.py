"""torchtitan: writes TOML (releases up to 0.2) and the same settings as options for 0.3; reads the TOML and
0.3's Python configuration.

Names: torchtitan/config/job_config.py.
"""

from collections.abc import Mapping

from tools.errors import InputError
from tools.frameworks.exporting import (
    RECOMPUTE_NOT_STATED,
    ExportJob,
    SettingsTree,
    first_names,
    nested,
    toml_text,
)
from tools.frameworks.format import SURE, Format, Keys, UnknownFile
from tools.frameworks.importing import Draft, ImportOptions, read_levers, stated_plan
from tools.frameworks.python_config import VARIABLE, is_recipe, looks_like_python, parse_python
from tools.frameworks.reading import SettingsReader, parse_text
from tools.scenario.spec import FULL_SHARDING

SCHEDULES = {
    "GPipe": "gpipe",
    "1F1B": "1f1b",
    "Interleaved1F1B": "interleaved",
    "LoopedBFS": "gpipe",
    "InterleavedZeroBubble": "zero_bubble",
    "ZBVZeroBubble": "zero_bubble",
    "DualPipeV": "zero_bubble",
}
DEGREES = (
    "tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel", "data_parallel_replicate",
)  # fmt: skip
SINGLE_CHUNK_SCHEDULES = ("GPipe", "1F1B")
V_SCHEDULE = "ZBVZeroBubble"
"""The zero-bubble schedule with exactly two chunks per stage."""
DTYPES = {"float32": "fp32", "bfloat16": "bf16"}
QUANTIZED_DTYPE = "bfloat16"
CONVERTERS = {"float8": "fp8", "mx": "mxfp8", "nvfp4": "nvfp4"}
FILE_CONVERTERS = ("float8", "mx")  # nvfp4 by the configuration function alone
SAME_OPTIONS = ("compile.enable", "debug.moe_force_load_balance", "training.enable_cpu_offload")
"""Levers that 0.3 has under the name of 0.2."""
RESHARDING = {"always": True, "never": False}
"""By default weights stay gathered under a pipeline only (torchtitan/distributed/fsdp.py)."""
SEQUENCES = (
    "training.local_batch_size", "training.global_batch_size", "training.seq_len",
    "parallelism.pipeline_parallel_microbatch_size",
)  # fmt: skip
LENGTH = "training.max_context_length"
MAIN = "commit b5bcd76, August 2026"
TOKENS = ("training.num_tokens_per_microbatch_per_dp_rank", "training.num_tokens_per_train_step")
PIECES = "parallelism.num_pp_microbatches"
DEFAULT_LOCAL_BATCH_SIZE = 8
DEFAULT_SEQ_LEN = 2048


class Torchtitan(Format):
    name = framework = "torchtitan"
    reads = "TOML, or 0.3's Python configuration (the variable CONFIG names the function)"
    writes = "TOML (torchtitan 0.2), the options of torchtitan 0.3 in its comments"
    file_name = "torchtitan.toml"
    judged_by = f"torchtitan 0.3.0; its main by the names of {MAIN}"
    has_levers = True
    says = ("optimizer_state", "gradient_dtype")
    carries = ("reshard_after_forward",)

    def certainty(self, file: UnknownFile) -> int:
        if file.kind == "python":
            return 0 if is_recipe(file.text) else SURE
        is_own = file.has_any("parallelism", "training", "activation_checkpoint", "job")
        return SURE if file.kind == "TOML" and is_own else 0

    def write(self, job: ExportJob) -> tuple[str, tuple[str, ...]]:
        plan, training = job.plan, job.scenario.training
        job.check_precision("torchtitan", (*DTYPES.values(), *CONVERTERS.values()))
        # A pipeline takes all micro-batches of a step at once; without one they are accumulated.
        local = training.global_batch_size // plan.dp if plan.pp > 1 else plan.micro_batch_size
        # One dtype for weights, gradients and moments.
        states = {training.optimizer_state, training.gradient_dtype}
        kept = training.optimizer_state
        mode = {} if plan.recompute is None else {"mode": plan.recompute}
        tables: dict[str, SettingsTree] = {
            "training": {
                "local_batch_size": local,
                "global_batch_size": training.global_batch_size,
                "seq_len": training.seq_len,
                "mixed_precision_param": first_names(DTYPES).get(training.precision, QUANTIZED_DTYPE),
                **({"dtype": first_names(DTYPES)[kept]} if len(states) == 1 and kept else {}),
            },
            "parallelism": _parallelism(job),
            "activation_checkpoint": {
                **mode,
                **({"selective_ac_option": "op"} if plan.recompute == "selective" else {}),
            },
        }
        comments = (
            "torchtitan 0.2 reads this file: torchrun ... -m torchtitan.train --job.config_file FILE",
            "torchtitan 0.3 takes the same as options, behind --module NAME --config FUNCTION:",
            *_options(job, tables),
            f"torchtitan main ({MAIN}) counts tokens. In place of the batch sizes, seq_len and",
            "pipeline_parallel_microbatch_size it takes:",
            *(f" main: --{name} {value}" for name, value in _in_tokens(job).items()),
        )
        for table, values in nested(job.lever_settings).items():
            tables[table] = tables.get(table, {}) | (dict(values) if isinstance(values, Mapping) else {})
        converter = first_names(CONVERTERS).get(training.precision)
        if converter in FILE_CONVERTERS:
            tables["model"] = {"converters": [f"quantize.linear.{converter}"]}
        notes = [] if plan.recompute else [RECOMPUTE_NOT_STATED]
        if converter:
            notes.append(
                f"torchtitan 0.3 takes {training.precision} from the configuration function (a converter of "
                "the model), not from an option: choose one that has it"
            )
        if "parallelism.expert_parallel_comm_backend" in job.lever_settings:
            notes.append("torchtitan 0.3 takes the token dispatcher from the configuration function too")
        if len(states) == 2 and "bf16" in states:
            notes.append("training.dtype is left out: it sets optimizer_state and gradient_dtype together")
        if plan.tp > 1 and not plan.sequence_parallel:
            notes.append("enable_sequence_parallel needs torchtitan 0.3; 0.2 always splits the sequence")
        filled = {name: table for name, table in tables.items() if table}
        return toml_text(comments, filled), tuple(notes)

    def settings(self, job: ExportJob, names: Keys) -> SettingsTree:
        """Later releases count tokens, and the pipeline's micro-batches."""
        settings = super().settings(job, names)
        if TOKENS[0] in names:
            for old in SEQUENCES:
                settings.pop(old, None)
            settings |= _in_tokens(job)
        return settings

    def read(self, text: str, options: ImportOptions) -> Draft:
        if not looks_like_python(text):
            return self.read_settings(SettingsReader(parse_text(text, "TOML"), self.name), options)
        if "torchtitan.experiments.rl" in text:
            raise InputError("text", "torchtitan's RL", "not supported: several models in one run (RL)")
        found = parse_python(text, options.variables.get(VARIABLE), options.find_module)
        return self.read_settings(SettingsReader(found.sections, self.name), options)

    def read_settings(self, settings: SettingsReader, options: ImportOptions) -> Draft:
        tp, pp, cp, ep, replicas = (settings.integer(f"parallelism.{name}_degree") or 1 for name in DEGREES)
        shard = settings.integer("parallelism.data_parallel_shard_degree", minimum=-1) or -1
        if shard == -1:
            why = "data_parallel_shard_degree -1 takes the devices that are left"
            shard = options.divide_devices(tp * pp * cp * replicas, why)
        reshards = settings.word("parallelism.fsdp_reshard_after_forward", ("default", *RESHARDING))
        lengths = [settings.integer(f"training.{name}") for name in ("seq_len", "max_context_length")]
        seq_len = next(filter(None, lengths), DEFAULT_SEQ_LEN)
        micro, total = _batch(settings, seq_len, replicas * shard, pp)
        schedule, vpp = _schedule(settings, pp, options)
        sequence_parallel = settings.flag("parallelism.enable_sequence_parallel")
        mode = settings.word("activation_checkpoint.mode", ("none", "selective", "full", "memory_budget"))
        settings.word("activation_checkpoint.selective_ac_option")
        plan = stated_plan(
            (tp, pp, cp, replicas * shard),
            FULL_SHARDING,
            shard * cp,
            ep=ep,
            micro_batch_size=micro,
            vpp=vpp,
            sequence_parallel=sequence_parallel is not False,
            recompute="selective" if mode in (None, "memory_budget") else mode,
            schedule=schedule,
            etp=settings.integer("parallelism.expert_tensor_parallel_degree"),
            reshard_after_forward=RESHARDING.get(reshards or "default", False if pp > 1 else None),
        )
        training = read_levers(settings, "torchtitan")
        if settings.flag("compile.enable_async_tensor_parallel"):
            training["overlap_tensor_communication"] = True
        if settings.flag("training.disable_cuda_graphs"):
            training["cuda_graph"] = "none"
        if dtype := settings.word("training.dtype", DTYPES):
            training |= {"optimizer_state": DTYPES[dtype], "gradient_dtype": DTYPES[dtype]}
        return Draft(
            plan,
            _precision(settings),
            seq_len=seq_len,
            global_batch_size=total,
            training=training,
            model_name=" ".join(filter(None, (settings.text("model.name"), settings.text("model.flavor")))),
            unused=settings.unused(),
        )


def _parallelism(job: ExportJob) -> SettingsTree:
    plan, layers = job.plan, job.scenario.model.num_hidden_layers
    if plan.etp > 1 and job.scenario.model.is_moe:
        raise job.refuse("etp", "torchtitan 0.3 has no tensor parallelism inside an expert; must be 1")
    if job.zero_stage == 0 and plan.cp > 1:
        reason = f"torchtitan always shards over the context-parallel ranks (cp {plan.cp}); must be 2 or 3"
        raise job.refuse("zero_stage", reason)
    if job.zero_stage == 0 and plan.tp % plan.ep:
        reason = f"experts live in the ranks that shard: zero_stage 0 leaves tp ({plan.tp}); must divide it"
        raise job.refuse("ep", reason)
    # The axis that shards is this degree times cp (torchtitan/distributed/parallel_dims.py).
    shard = plan.dp_shard // plan.cp if job.zero_stage else 1
    settings: SettingsTree = {
        "data_parallel_replicate_degree": plan.dp // shard,
        "data_parallel_shard_degree": shard,
        "fsdp_reshard_after_forward": "never" if job.keeps_weights else "always",
        "tensor_parallel_degree": plan.tp,
        "context_parallel_degree": plan.cp,
        "expert_parallel_degree": plan.ep,
        "pipeline_parallel_degree": plan.pp,
    }
    if plan.tp > 1 and not plan.sequence_parallel:
        settings["enable_sequence_parallel"] = False
    if plan.pp == 1:
        return settings
    name = first_names(SCHEDULES)[plan.schedule]
    if SCHEDULES[name] == SCHEDULES[V_SCHEDULE] and plan.vpp == 2:
        name = V_SCHEDULE
    if name == "GPipe" and plan.vpp > 1:
        raise job.refuse("vpp", "torchtitan runs gpipe with one chunk per stage; must be 1")
    settings["pipeline_parallel_schedule"] = name
    settings["pipeline_parallel_microbatch_size"] = plan.micro_batch_size
    # torchtitan takes the layers per chunk, with or without embedding and loss, and derives the chunks.
    chunks = plan.pp * plan.vpp
    for less_layers in (1, 0):
        slots = layers + 2 * less_layers
        per_chunk = -(-slots // chunks)
        if -(-slots // per_chunk) == chunks and slots // chunks >= less_layers:
            ends = ("first", "last") if less_layers == 0 else ()
            less = {f"pipeline_parallel_{end}_stage_less_layers": 0 for end in ends}
            return settings | {"pipeline_parallel_layers_per_stage": per_chunk, **less}
    reason = f"torchtitan has no setting that splits {layers} layers into pp * vpp = {chunks} chunks"
    raise job.refuse("vpp", reason)


def _in_tokens(job: ExportJob) -> SettingsTree:
    """What later releases have for the batch sizes: the tokens of one forward pass, of the step, and how many
    passes a pipeline runs at once."""
    plan, training = job.plan, job.scenario.training
    values = (plan.micro_batch_size * training.seq_len, training.global_batch_size * training.seq_len)
    settings: SettingsTree = {**dict(zip(TOKENS, values, strict=True)), LENGTH: training.seq_len}
    return settings | ({PIECES: job.micro_batches} if plan.pp > 1 else {})


def _options(job: ExportJob, tables: Mapping[str, SettingsTree]) -> list[str]:
    """The settings as torchtitan 0.3 takes them; its recomputation is a subcommand and comes last."""
    options = []
    for table in ("training", "parallelism"):
        for key, value in tables[table].items():
            option = f"{key} {value}"
            if isinstance(value, bool):
                option = key if value else key.replace("enable_", "no-enable_", 1)
            options.append(f"  --{table}.{option}")
    # torchtitan/trainer.py of 0.3 refuses its default, CUDA graphs, with a pipeline and most expert kernels.
    if job.plan.pp > 1 or job.plan.ep > 1 or job.scenario.training.cuda_graph == "none":
        options.append("  --training.disable_cuda_graphs")
    levers = job.lever_settings
    options += [f"  --{name}" for name in SAME_OPTIONS if name in levers]
    if "parallelism.enable_async_tensor_parallel" in levers:  # 0.3 has moved it
        options.append("  --compile.enable_async_tensor_parallel")
    if job.plan.recompute:
        options.append(f"  activation_checkpoint:{job.plan.recompute}")
    return options


def _batch(settings: SettingsReader, seq_len: int, dp: int, pp: int) -> tuple[int, int]:
    """Sequences of a micro-batch and of a step."""
    local = settings.integer("training.local_batch_size") or DEFAULT_LOCAL_BATCH_SIZE
    in_pipeline = settings.integer("parallelism.pipeline_parallel_microbatch_size") or 1
    total = settings.integer("training.global_batch_size", minimum=-1)
    # Later releases count tokens of one forward pass, and how many of them a pipeline takes at once.
    pieces = settings.integer(PIECES) or 1
    if tokens := settings.integer(TOKENS[0]):
        in_pipeline = max(tokens // seq_len, 1)
        local = in_pipeline * (pieces if pp > 1 else 1)
    tokens_per_step = settings.integer(TOKENS[1], minimum=-1) or -1
    if tokens_per_step > 0:
        total = tokens_per_step // seq_len
    return in_pipeline if pp > 1 else local, total if total and total > 0 else local * dp


def _schedule(settings: SettingsReader, pp: int, options: ImportOptions) -> tuple[str | None, int]:
    """The schedule, None without a pipeline, and the chunks per stage."""
    name = settings.word("parallelism.pipeline_parallel_schedule", SCHEDULES) or "1F1B"
    per_chunk = settings.integer("parallelism.pipeline_parallel_layers_per_stage")
    less_layers = [
        settings.integer(f"parallelism.pipeline_parallel_{end}_stage_less_layers", minimum=0)
        for end in ("first", "last")
    ]
    if pp == 1:
        return None, 1
    if name in SINGLE_CHUNK_SCHEDULES:
        return SCHEDULES[name], 1
    if per_chunk is None:
        return SCHEDULES[name], 2
    slots = options.get_num_layers() + sum(1 if less is None else less for less in less_layers)
    return SCHEDULES[name], max(1, -(-slots // per_chunk) // pp)


def _precision(settings: SettingsReader) -> str:
    dtype = settings.word("training.mixed_precision_param", DTYPES) or "bfloat16"
    for converter in settings.words("model.converters"):
        for name, precision in CONVERTERS.items():
            if converter == name or converter.endswith(f"linear.{name}"):
                return precision
    return DTYPES[dtype]
