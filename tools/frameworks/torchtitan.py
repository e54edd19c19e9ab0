"""torchtitan: writes TOML (releases up to 0.2) and the same settings as options for 0.3; reads the TOML.

Names: torchtitan/config/job_config.py.
"""

from collections.abc import Mapping
from typing import Any

from tools.frameworks.assemble import Draft, Given, divide_devices, get_num_devices, get_num_layers
from tools.frameworks.reading import Settings, parse_toml
from tools.frameworks.writing import NO_RECOMPUTE_STATED, Export, Job, toml_text

SCHEDULES = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B"}
ZERO_BUBBLES = {2: "ZBVZeroBubble"}
ZERO_BUBBLE_LOOPED = "InterleavedZeroBubble"
PRECISIONS = {
    "fp32": "float32",
    "bf16": "bfloat16",
    "fp8": "bfloat16",
    "mxfp8": "bfloat16",
    "nvfp4": "bfloat16",
}
CONVERTERS = {"fp8": "quantize.linear.float8", "mxfp8": "quantize.linear.mx"}


def export_torchtitan(job: Job) -> Export:
    _refuse_what_it_lacks(job)
    tables: dict[str, dict[str, Any]] = {
        "training": _training(job),
        "parallelism": _parallelism(job),
        "activation_checkpoint": _activation_checkpoint(job),
    }
    options = _options(job, tables)
    precision = job.scenario.training.precision
    if precision in CONVERTERS:
        tables["model"] = {"converters": [CONVERTERS[precision]]}
    comments = (
        "torchtitan 0.2 reads this file: torchrun ... -m torchtitan.train --job.config_file FILE",
        "torchtitan 0.3 takes the same as options, behind --module NAME --config FUNCTION:",
        *options,
    )
    written = {name: table for name, table in tables.items() if table}
    return Export("torchtitan", "torchtitan.toml", toml_text(comments, written), _notes(job))


def _refuse_what_it_lacks(job: Job) -> None:
    plan, precision = job.plan, job.scenario.training.precision
    if precision not in PRECISIONS:
        raise job.refuse_precision("torchtitan", PRECISIONS)
    if plan.etp > 1 and job.scenario.model.is_moe:
        raise job.refuse("etp", "torchtitan 0.3 has no tensor parallelism inside an expert; must be 1")
    if job.zero_stage == 0 and plan.cp > 1:
        reason = f"torchtitan always shards over the context-parallel ranks (cp {plan.cp}); must be 2 or 3"
        raise job.refuse("zero_stage", reason)
    if job.zero_stage == 0 and plan.tp % plan.ep:
        reason = f"experts live in the ranks that shard: zero_stage 0 leaves tp ({plan.tp}); must divide it"
        raise job.refuse("ep", reason)


def _training(job: Job) -> dict[str, Any]:
    training, plan = job.scenario.training, job.plan
    # A pipeline takes all micro-batches of a step at once; without one they are accumulated.
    local = training.global_batch_size // plan.dp if plan.pp > 1 else plan.micro_batch_size
    return {
        "local_batch_size": local,
        "global_batch_size": training.global_batch_size,
        "seq_len": training.seq_len,
        "mixed_precision_param": PRECISIONS[training.precision],
    }


def _parallelism(job: Job) -> dict[str, Any]:
    plan = job.plan
    # The axis that shards is this degree times cp (torchtitan/distributed/parallel_dims.py).
    shard = plan.dp_shard // plan.cp if job.zero_stage else 1
    degrees: dict[str, Any] = {
        "data_parallel_replicate_degree": plan.dp // shard,
        "data_parallel_shard_degree": shard,
        "fsdp_reshard_after_forward": "always" if job.zero_stage != 2 else "never",
        "tensor_parallel_degree": plan.tp,
        "context_parallel_degree": plan.cp,
        "expert_parallel_degree": plan.ep,
        "pipeline_parallel_degree": plan.pp,
    }
    if plan.tp > 1 and not plan.sequence_parallel:
        degrees["enable_sequence_parallel"] = False
    return degrees | (_pipeline(job) if plan.pp > 1 else {})


def _pipeline(job: Job) -> dict[str, Any]:
    plan = job.plan
    name = SCHEDULES.get(plan.schedule) or ZERO_BUBBLES.get(plan.vpp, ZERO_BUBBLE_LOOPED)
    if name == "GPipe" and plan.vpp > 1:
        raise job.refuse("vpp", "torchtitan runs gpipe with one chunk a stage; must be 1")
    settings = {
        "pipeline_parallel_schedule": name,
        "pipeline_parallel_microbatch_size": plan.micro_batch_size,
    }
    return settings | _split(job)


def _split(job: Job) -> dict[str, int]:
    """torchtitan is told the layers of a chunk, embedding and loss counted or not, and derives the chunks."""
    plan, layers = job.plan, job.scenario.model.num_hidden_layers
    chunks = plan.pp * plan.vpp
    for less_layers in (1, 0):
        slots = layers + 2 * less_layers
        per_chunk = -(-slots // chunks)
        if -(-slots // per_chunk) == chunks and slots // chunks >= less_layers:
            ends = ("first", "last") if less_layers == 0 else ()
            return {"pipeline_parallel_layers_per_stage": per_chunk} | {
                f"pipeline_parallel_{end}_stage_less_layers": 0 for end in ends
            }
    reason = f"torchtitan cannot be told to split {layers} layers into pp * vpp = {chunks} chunks"
    raise job.refuse("vpp", reason)


def _activation_checkpoint(job: Job) -> dict[str, Any]:
    if job.plan.recompute is None:
        return {}
    selective = {"selective_ac_option": "op"} if job.plan.recompute == "selective" else {}
    return {"mode": job.plan.recompute} | selective


def _options(job: Job, tables: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """The settings as torchtitan 0.3 takes them; its recomputation is a subcommand and comes last."""
    options = [
        f"  --{table}.{_flag(key, value)}"
        for table in ("training", "parallelism")
        for key, value in tables[table].items()
    ]
    # torchtitan/trainer.py of 0.3 refuses its default, CUDA graphs, with a pipeline and most expert kernels.
    if job.plan.pp > 1 or job.plan.ep > 1:
        options.append("  --training.disable_cuda_graphs")
    mode = tables["activation_checkpoint"].get("mode")
    return (*options, *([f"  activation_checkpoint:{mode}"] if mode else []))


def _flag(key: str, value: object) -> str:
    if isinstance(value, bool):
        return key if value else key.replace("enable_", "no-enable_", 1)
    return f"{key} {value}"


def _notes(job: Job) -> tuple[str, ...]:
    notes = []
    precision = job.scenario.training.precision
    if job.plan.recompute is None:
        notes.append(NO_RECOMPUTE_STATED)
    if precision in ("fp8", "mxfp8", "nvfp4"):
        notes.append(
            f"torchtitan 0.3 takes {precision} from the configuration function (a converter of the model), "
            "not from an option: choose one that has it"
        )
    if job.plan.tp > 1 and not job.plan.sequence_parallel:
        notes.append("enable_sequence_parallel needs torchtitan 0.3; 0.2 always splits the sequence")
    return tuple(notes)


SCHEDULE_NAMES = {
    "GPipe": "gpipe",
    "1F1B": "1f1b",
    "Interleaved1F1B": "interleaved",
    "LoopedBFS": "gpipe",
    "InterleavedZeroBubble": "zero_bubble",
    "ZBVZeroBubble": "zero_bubble",
    "DualPipeV": "zero_bubble",
}
SINGLE_STAGE = ("GPipe", "1F1B")
LOCAL_BATCH_SIZE = 8  # what torchtitan takes where a file does not say
PARAMETER_TYPES = {"bfloat16": "bf16", "float32": "fp32"}
QUANTIZED = {"float8": "fp8", "mx": "mxfp8"}


def read_torchtitan(text: str, given: Given) -> Draft:
    settings = Settings(parse_toml(text), "torchtitan")
    sizes = _degrees(settings, given)
    batch = _batch(settings, sizes)
    training = {
        "seq_len": settings.integer("training.seq_len") or 2048,
        "global_batch_size": batch.pop("global_batch_size"),
        "precision": _precision(settings),
    }
    plan = sizes | batch | _pipeline_torchtitan(settings, sizes["pp"], given) | _sharing(settings)
    num_devices = sizes["tp"] * sizes["pp"] * sizes["cp"] * sizes["dp"]
    return Draft(plan, training, num_devices=num_devices, notes=_notes_torchtitan(settings))


def _degrees(settings: Settings, given: Given) -> dict[str, int]:
    def degree(name: str) -> int:
        return settings.integer(f"parallelism.{name}_degree") or 1

    tp, pp, cp = degree("tensor_parallel"), degree("pipeline_parallel"), degree("context_parallel")
    replicate = degree("data_parallel_replicate")
    shard = settings.integer("parallelism.data_parallel_shard_degree", least=-1) or -1
    if shard == -1:
        why = "data_parallel_shard_degree -1 takes the devices that are left"
        shard = divide_devices(get_num_devices(given, why), tp * pp * cp * replicate)
    shard_all = shard * cp
    return {
        "tp": tp, "pp": pp, "cp": cp, "ep": degree("expert_parallel"), "dp": replicate * shard,
        "dp_shard": shard_all, "zero_stage": _zero_stage(settings, shard_all, pp),
    }  # fmt: skip


def _zero_stage(settings: Settings, shard_ranks: int, pp: int) -> int:
    name = "parallelism.fsdp_reshard_after_forward"
    policy = settings.word(name, ("default", "always", "never")) or "default"
    if shard_ranks == 1:
        return 0
    # By default weights stay gathered under a pipeline (torchtitan/distributed/fsdp.py).
    return 2 if policy == "never" or (policy == "default" and pp > 1) else 3


def _batch(settings: Settings, sizes: dict[str, int]) -> dict[str, int]:
    local = settings.integer("training.local_batch_size") or LOCAL_BATCH_SIZE
    piped = settings.integer("parallelism.pipeline_parallel_microbatch_size") or 1
    stated = settings.integer("training.global_batch_size", least=-1)
    return {
        "micro_batch_size": piped if sizes["pp"] > 1 else local,
        "global_batch_size": stated if stated and stated > 0 else local * sizes["dp"],
    }


def _pipeline_torchtitan(settings: Settings, pp: int, given: Given) -> dict[str, Any]:
    name = settings.word("parallelism.pipeline_parallel_schedule", SCHEDULE_NAMES) or "1F1B"
    per_chunk = settings.integer("parallelism.pipeline_parallel_layers_per_stage")
    first = settings.integer("parallelism.pipeline_parallel_first_stage_less_layers", least=0)
    last = settings.integer("parallelism.pipeline_parallel_last_stage_less_layers", least=0)
    if pp == 1:
        return {"vpp": 1}
    if name in SINGLE_STAGE:
        return {"vpp": 1, "schedule": SCHEDULE_NAMES[name]}
    if per_chunk is None:
        return {"vpp": 2, "schedule": SCHEDULE_NAMES[name]}
    slots = get_num_layers(given) + (1 if first is None else first) + (1 if last is None else last)
    return {"vpp": max(1, -(-slots // per_chunk) // pp), "schedule": SCHEDULE_NAMES[name]}


def _sharing(settings: Settings) -> dict[str, Any]:
    stated = settings.flag("parallelism.enable_sequence_parallel")
    mode = settings.word("activation_checkpoint.mode", ("none", "selective", "full", "memory_budget"))
    settings.word("activation_checkpoint.selective_ac_option")
    etp = settings.integer("parallelism.expert_tensor_parallel_degree")
    return {
        "sequence_parallel": True if stated is None else stated,
        "recompute": "selective" if mode in (None, "memory_budget") else mode,
        **({"etp": etp} if etp else {}),
    }


def _precision(settings: Settings) -> str:
    parameters = settings.word("training.mixed_precision_param", PARAMETER_TYPES) or "bfloat16"
    for converter in settings.words("model.converters"):
        for part, precision in QUANTIZED.items():
            if converter.endswith(f"linear.{part}") or converter == part:
                return precision
    return PARAMETER_TYPES[parameters]


def _notes_torchtitan(settings: Settings) -> list[str]:
    return [f"not used: {name}" for name in settings.unread()]
