"""axolotl: reads its YAML, full fine-tuning and adapters.

Names: src/axolotl/utils/schemas/config.py of axolotl-ai-cloud/axolotl.
"""

from tools.errors import InputError
from tools.frameworks.finetuning import (
    DATA_PARALLEL,
    Engine,
    TrainerRun,
    deepspeed_engine,
    draft_of,
    loaded_bits,
    lora_fields,
)
from tools.frameworks.importing import Draft, ImportOptions
from tools.frameworks.reading import JsonObject, SettingsReader, parse_yaml

REFUSED = {
    "reward_model": "a reward model",
    "process_reward_model": "a reward model",
    "vllm": "a run with a generating server",
}
FULL_SHARD = ("FULL_SHARD", "HYBRID_SHARD")


def import_axolotl(text: str, options: ImportOptions) -> Draft:
    settings = SettingsReader(parse_yaml(text), "axolotl")
    for name, what in REFUSED.items():
        if settings.flag(name) if name != "vllm" else settings.has(name):
            raise InputError(f"axolotl: {name}", settings.text(name), f"not priced: {what}")
    if any("diffusion" in str(plugin).lower() for plugin in settings.items("plugins")):
        raise InputError(
            "axolotl: plugins", "diffusion", "not priced: training of a diffusion language model"
        )
    if settings.has("rl") and settings.text("rl") not in ("", "None"):
        raise InputError("axolotl: rl", settings.text("rl"), "not priced: several models in one run (RL)")
    run = TrainerRun(
        engine=_engine(settings),
        precision=_precision(settings),
        tp=settings.integer("tensor_parallel_size") or 1,
        cp=settings.integer("context_parallel_size") or settings.integer("sequence_parallel_degree") or 1,
        micro_batch_size=settings.integer("micro_batch_size"),
        accumulation=settings.integer("gradient_accumulation_steps") or 1,
        seq_len=settings.integer("sequence_len"),
        recompute="full" if _checkpoints(settings) else "none",
        dp_shard=settings.integer("dp_shard_size"),
        model_name=settings.text("base_model") or "",
    )
    return draft_of(run, options, _adapter(settings), settings.unused_notes())


def _engine(settings: SettingsReader) -> Engine:
    path = settings.text("deepspeed")
    version = settings.integer("fsdp_version") or settings.integer("fsdp_config.fsdp_version")
    strategy = settings.text("fsdp_config.fsdp_sharding_strategy") or settings.text(
        "fsdp_config.sharding_strategy"
    )
    old = [str(word) for word in settings.items("fsdp")]
    reshards = settings.flag("fsdp_config.reshard_after_forward")
    offload = bool(
        settings.flag("fsdp_config.offload_params") or settings.flag("fsdp_config.fsdp_offload_params")
    )
    if path:
        return deepspeed_engine(path, "axolotl: deepspeed")
    if old or version or strategy or settings.has("fsdp_config.auto_wrap_policy"):
        full = reshards is not False and (strategy in (None, *FULL_SHARD) or "full_shard" in old)
        return Engine("torch-fsdp2" if version == 2 else "torch-fsdp", 3 if full else 2, offload)
    return DATA_PARALLEL


def _precision(settings: SettingsReader) -> str:
    if settings.flag("fp8"):
        return "fp8"
    stated = {name: settings.text(name) for name in ("bf16", "bfloat16", "fp16", "float16")}
    if stated["fp16"] == "True" or stated["float16"] == "True":
        return "fp16"
    return "fp32" if stated["bf16"] in ("False", "false") else "bf16"


def _checkpoints(settings: SettingsReader) -> bool:
    return settings.text("gradient_checkpointing") not in (None, "False", "false")


def _adapter(settings: SettingsReader) -> JsonObject:
    adapter = settings.text("adapter")
    rank, names, bits = (
        settings.integer("lora_r"),
        settings.items("lora_target_modules"),
        loaded_bits(settings),
    )
    if not names and settings.has("lora_target_modules"):
        names = [settings.text("lora_target_modules")]
    if settings.flag("lora_target_linear"):
        names = ["all"]
    if adapter in (None, "", "None"):
        return {}
    if adapter not in ("lora", "qlora"):
        raise InputError("axolotl: adapter", adapter, "not priced; allowed: lora, qlora")
    return lora_fields(rank, names, bits)
