"""TRL: reads the YAML of `trl sft --config`, or the arguments of its scripts.

Names: trl/scripts, trl/trainer/sft_config.py, model_config.py, and transformers' TrainingArguments. Launch
files of its accelerate_configs folder are Accelerate's format.
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
from tools.frameworks.reading import SettingsReader, parse_yaml
from tools.frameworks.shell import has_options, parse_arguments

OTHER_TRAINERS = (
    "dpo",
    "grpo",
    "ppo",
    "kto",
    "orpo",
    "rloo",
    "reward",
    "gkd",
    "online_dpo",
    "cpo",
    "xpo",
    "nash_md",
)
DEFAULT_MICRO_BATCH_SIZE = 8
DEFAULT_SEQ_LEN = 1024
DEFAULT_RANK = 16  # ModelConfig.lora_r


def import_trl(text: str, options: ImportOptions) -> Draft:
    is_arguments = has_options(text)
    if is_arguments:
        _refuse_other_trainers(text)
    values = parse_arguments(text, options.variables) if is_arguments else parse_yaml(text)
    settings = SettingsReader(values, "trl", bare_flags=is_arguments)
    for name in ("num_generations", "beta", "reward_funcs"):
        if settings.has(name):
            raise InputError(
                f"trl: {name}", settings.text(name), "not priced: training with several models (RL)"
            )
    path, fsdp = settings.text("deepspeed"), settings.text("fsdp")
    engine = deepspeed_engine(path, "trl: deepspeed") if path else DATA_PARALLEL
    if fsdp:
        engine = Engine("torch-fsdp", 3, "offload" in fsdp)
    half = [name for name in ("fp16", "bf16") if settings.flag(name)]
    dtype = settings.text("dtype") or settings.text("torch_dtype")
    checkpoints = settings.flag("gradient_checkpointing")
    run = TrainerRun(
        engine=engine,
        precision=half[0] if half else {"float32": "fp32", "float16": "fp16"}.get(dtype or "", "bf16"),
        micro_batch_size=settings.integer("per_device_train_batch_size") or DEFAULT_MICRO_BATCH_SIZE,
        accumulation=settings.integer("gradient_accumulation_steps") or 1,
        seq_len=settings.integer("max_length") or settings.integer("max_seq_length") or DEFAULT_SEQ_LEN,
        # SFTConfig turns it on.
        recompute="none" if checkpoints is False else "full",
        model_name=settings.text("model_name_or_path") or "",
    )
    rank, names = settings.integer("lora_r"), settings.items("lora_target_modules")
    target = settings.text("lora_target_modules")
    adapter = settings.flag("use_peft")
    bits = loaded_bits(settings)
    training = lora_fields(rank or DEFAULT_RANK, names or [target or "all"], bits) if adapter else {}
    return draft_of(run, options, training, settings.unused_notes())


def _refuse_other_trainers(text: str) -> None:
    for name in OTHER_TRAINERS:
        if f"trl {name}" in text or f"{name}.py" in text:
            raise InputError("FILE", f"trl {name}", "not priced: training with several models; allowed: sft")
