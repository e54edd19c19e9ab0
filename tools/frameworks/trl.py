"""TRL: reads the YAML and the arguments of its SFT trainer.

Names: trl/scripts, trl/trainer/sft_config.py and model_config.py, and transformers' TrainingArguments.
"""

from tools.errors import InputError
from tools.frameworks.exporting import ExportJob, SettingsTree
from tools.frameworks.format import SURE, Format, Keys, UnknownFile
from tools.frameworks.importing import Draft, ImportOptions
from tools.frameworks.reading import SettingsReader, parse_text
from tools.frameworks.shell import has_options, parse_arguments
from tools.frameworks.trainer import (
    BATCH_SETTING,
    DEFAULT_MICRO_BATCH_SIZE,
    Engine,
    TrainerRun,
    deepspeed_engine,
    fsdp_engine,
    loaded_bits,
    read_lora,
    trainer_settings,
)

OTHER_TRAINERS = (
    "dpo", "grpo", "ppo", "kto", "orpo", "rloo", "reward", "gkd", "online_dpo", "cpo", "xpo", "nash_md",
)  # fmt: skip
DEFAULT_SEQ_LEN = 1024
DEFAULT_LORA_RANK = 16  # ModelConfig.lora_r


class Trl(Format):
    name = "trl"
    framework = "huggingface"
    reads = "YAML or arguments of its SFT trainer"

    def certainty(self, file: UnknownFile) -> int:
        if file.kind == "script":
            return SURE if f"--{BATCH_SETTING}" in file.text or "--model_name_or_path" in file.text else 0
        return SURE if "model_name_or_path" in file.keys and not file.section("model") else 0

    def settings(self, job: ExportJob, names: Keys) -> SettingsTree:
        return {**trainer_settings(job), "gradient_checkpointing": job.plan.recompute == "full"}

    def read(self, text: str, options: ImportOptions) -> Draft:
        is_arguments = has_options(text)
        for name in OTHER_TRAINERS if is_arguments else ():
            if f"trl {name}" in text or f"{name}.py" in text:
                rule = "not supported: training with several models; allowed: sft"
                raise InputError("text", f"trl {name}", rule)
        values = parse_arguments(text, options.variables) if is_arguments else parse_text(text, "YAML")
        settings = SettingsReader(values, "trl", bare_flags=is_arguments)
        for name in ("num_generations", "beta", "reward_funcs"):
            if settings.has(name):
                rule = "not supported: training with several models (RL)"
                raise InputError(f"trl: {name}", settings.text(name), rule)
        path, fsdp = settings.text("deepspeed"), settings.text("fsdp")
        engine = deepspeed_engine(path, "trl: deepspeed") if path else Engine()
        half = [name for name in ("fp16", "bf16") if settings.flag(name)]
        dtype = settings.text("dtype") or settings.text("torch_dtype") or ""
        checkpoints = settings.flag("gradient_checkpointing")
        rank, target = settings.integer("lora_r"), settings.text("lora_target_modules")
        modules, bits = settings.items("lora_target_modules") or [target or "all"], loaded_bits(settings)
        has_adapter = settings.flag("use_peft")
        return TrainerRun(
            engine=fsdp_engine(fsdp) if fsdp else engine,
            precision=half[0] if half else {"float32": "fp32", "float16": "fp16"}.get(dtype, "bf16"),
            micro_batch_size=settings.integer(BATCH_SETTING) or DEFAULT_MICRO_BATCH_SIZE,
            accumulation=settings.integer("gradient_accumulation_steps") or 1,
            seq_len=settings.integer("max_length") or settings.integer("max_seq_length") or DEFAULT_SEQ_LEN,
            recompute="none" if checkpoints is False else "full",  # SFTConfig turns it on
            model_name=settings.text("model_name_or_path") or "",
            lora=read_lora(rank or DEFAULT_LORA_RANK, modules, bits) if has_adapter else None,
        ).draft(settings, options)
