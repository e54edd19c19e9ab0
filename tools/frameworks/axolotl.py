"""axolotl: reads its YAML.

Names: src/axolotl/utils/schemas/config.py of axolotl-ai-cloud/axolotl.
"""

from tools.errors import InputError
from tools.frameworks.exporting import ExportJob, SettingsTree
from tools.frameworks.format import SURE, Format, Keys, UnknownFile
from tools.frameworks.importing import Draft, ImportOptions
from tools.frameworks.reading import SettingsReader, parse_text
from tools.frameworks.trainer import DEEPSPEED, Engine, TrainerRun, deepspeed_engine, loaded_bits, read_lora

REFUSED = {
    "reward_model": "a reward model",
    "process_reward_model": "a reward model",
    "vllm": "a run with a generating server",
}
FULL_SHARD = ("FULL_SHARD", "HYBRID_SHARD")
NO_ADAPTER = (None, "", "None")


class Axolotl(Format):
    name = "axolotl"
    framework = "huggingface"
    reads = "YAML, also LoRA and QLoRA"
    carries = ("reshard_after_forward",)

    def certainty(self, file: UnknownFile) -> int:
        return SURE if "base_model" in file.keys else 0

    def settings(self, job: ExportJob, names: Keys) -> SettingsTree:
        plan, is_fsdp = job.plan, job.zero_stage and job.scenario.training.framework != DEEPSPEED
        fsdp: SettingsTree = {
            "fsdp_version": 2,
            "fsdp_config.auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_config.reshard_after_forward": not job.keeps_weights,
            **({"dp_shard_size": plan.dp_shard} if plan.is_hybrid_sharded else {}),
        }
        return {
            "micro_batch_size": plan.micro_batch_size,
            "gradient_accumulation_steps": job.micro_batches,
            "gradient_checkpointing": plan.recompute == "full",
            "tensor_parallel_size": plan.tp,
            "context_parallel_size": plan.cp,
            **(fsdp if is_fsdp else {}),
        }

    def read(self, text: str, options: ImportOptions) -> Draft:
        settings = SettingsReader(parse_text(text, "YAML"), "axolotl")
        for name, what in REFUSED.items():
            if settings.flag(name) if name != "vllm" else settings.has(name):
                raise InputError(f"axolotl: {name}", settings.text(name), f"not supported: {what}")
        if any("diffusion" in str(plugin).lower() for plugin in settings.items("plugins")):
            rule = "not supported: training of a diffusion language model"
            raise InputError("axolotl: plugins", "diffusion", rule)
        if settings.has("rl") and settings.text("rl") not in ("", "None"):
            rule = "not supported: several models in one run (RL)"
            raise InputError("axolotl: rl", settings.text("rl"), rule)
        dtypes = {name: settings.text(name) for name in ("bf16", "bfloat16", "fp16", "float16")}
        is_half = "True" in (dtypes["fp16"], dtypes["float16"])
        precision = "fp16" if is_half else "fp32" if dtypes["bf16"] in ("False", "false") else "bf16"
        adapter, rank, bits = settings.text("adapter"), settings.integer("lora_r"), loaded_bits(settings)
        modules = settings.items("lora_target_modules") or (
            [settings.text("lora_target_modules")] if settings.has("lora_target_modules") else []
        )
        if settings.flag("lora_target_linear"):
            modules = ["all"]
        if adapter not in (*NO_ADAPTER, "lora", "qlora"):
            raise InputError("axolotl: adapter", adapter, "not supported; allowed: lora, qlora")
        checkpoints = settings.text("gradient_checkpointing")
        return TrainerRun(
            engine=_engine(settings),
            precision="fp8" if settings.flag("fp8") else precision,
            tp=settings.integer("tensor_parallel_size") or 1,
            cp=settings.integer("context_parallel_size") or settings.integer("sequence_parallel_degree") or 1,
            micro_batch_size=settings.integer("micro_batch_size"),
            accumulation=settings.integer("gradient_accumulation_steps") or 1,
            seq_len=settings.integer("sequence_len"),
            recompute="none" if checkpoints in (None, "False", "false") else "full",
            dp_shard=settings.integer("dp_shard_size"),
            model_name=settings.text("base_model") or "",
            lora=None if adapter in NO_ADAPTER else read_lora(rank, modules, bits),
        ).draft(settings, options)


def _engine(settings: SettingsReader) -> Engine:
    section = "fsdp_config"
    path, old = settings.text("deepspeed"), [str(word) for word in settings.items("fsdp")]
    version = settings.integer("fsdp_version") or settings.integer(f"{section}.fsdp_version")
    strategy = settings.text(f"{section}.fsdp_sharding_strategy") or settings.text(
        f"{section}.sharding_strategy"
    )
    reshards = settings.flag(f"{section}.reshard_after_forward")
    offload = settings.flag(f"{section}.offload_params") or settings.flag(f"{section}.fsdp_offload_params")
    if path:
        return deepspeed_engine(path, "axolotl: deepspeed")
    if old or version or strategy or settings.has(f"{section}.auto_wrap_policy"):
        is_full = strategy in (None, *FULL_SHARD) or "full_shard" in old
        return Engine(3 if is_full else 2, bool(offload), reshards=reshards if is_full else None)
    return Engine()
