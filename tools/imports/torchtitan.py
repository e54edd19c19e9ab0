"""torchtitan's TOML, as releases up to 0.2 read it (torchtitan/config/job_config.py)."""

from typing import Any

from tools.imports.assemble import Draft, Given, divide_devices, get_num_devices, get_num_layers
from tools.imports.reading import parse_toml
from tools.imports.settings import Settings

SCHEDULES = {
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
    plan = sizes | batch | _pipeline(settings, sizes["pp"], given) | _sharing(settings)
    num_devices = sizes["tp"] * sizes["pp"] * sizes["cp"] * sizes["dp"]
    return Draft(plan, training, num_devices=num_devices, notes=_notes(settings))


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


def _pipeline(settings: Settings, pp: int, given: Given) -> dict[str, Any]:
    name = settings.word("parallelism.pipeline_parallel_schedule", SCHEDULES) or "1F1B"
    per_chunk = settings.integer("parallelism.pipeline_parallel_layers_per_stage")
    first = settings.integer("parallelism.pipeline_parallel_first_stage_less_layers", least=0)
    last = settings.integer("parallelism.pipeline_parallel_last_stage_less_layers", least=0)
    if pp == 1:
        return {"vpp": 1}
    if name in SINGLE_STAGE:
        return {"vpp": 1, "schedule": SCHEDULES[name]}
    if per_chunk is None:
        return {"vpp": 2, "schedule": SCHEDULES[name]}
    slots = get_num_layers(given) + (1 if first is None else first) + (1 if last is None else last)
    return {"vpp": max(1, -(-slots // per_chunk) // pp), "schedule": SCHEDULES[name]}


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


def _notes(settings: Settings) -> list[str]:
    return [f"not used: {name}" for name in settings.unread()]
