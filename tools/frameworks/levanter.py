"""Levanter: reads the YAML of its training entry points.

Names and defaults: src/levanter/trainer.py and src/levanter/models of stanford-crfm/levanter. Weights are
sharded over the data axis (FSDP), the model axis is tensor parallelism.
"""

import re

from tools.errors import InputError
from tools.frameworks.exporting import ExportJob, SettingsTree
from tools.frameworks.format import SURE, Format, Keys, UnknownFile
from tools.frameworks.importing import Draft, ImportOptions, ModelFields, stated_plan
from tools.frameworks.reading import SettingsReader

FIELDS = {
    "hidden_dim": "hidden_size",
    "intermediate_dim": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "n_routed_experts": "num_experts",
    "num_experts_per_tok": "num_experts_per_tok",
}
TYPES = {
    "gpt2": "gpt2", "llama": "llama", "mistral": "mistral", "mixtral": "mixtral", "gemma": "gemma",
    "gemma2": "gemma2", "gemma3": "gemma3_text", "qwen": "qwen2", "qwen2": "qwen2", "qwen3": "qwen3",
    "olmo2": "olmo2", "olmo3": "olmo3", "apertus": "apertus",
}  # fmt: skip
PRECISIONS = {"float16": "fp16", "f16": "fp16", "float32": "fp32", "f32": "fp32"}
DEFAULT_BATCH_SIZE = 32  # trainer.py
DEFAULT_SEQ_LEN = 1024


class Levanter(Format):
    name = "levanter"
    framework = "other"
    reads = "YAML"

    def certainty(self, file: UnknownFile) -> int:
        return SURE if "type" in file.section("model") and "trainer" in file.keys else 0

    def settings(self, job: ExportJob, names: Keys) -> SettingsTree:
        return {
            "trainer.model_axis_size": job.plan.tp,
            "trainer.per_device_parallelism": job.plan.micro_batch_size,
            "model.gradient_checkpointing": job.plan.recompute == "full",
        }

    def read_settings(self, settings: SettingsReader, options: ImportOptions) -> Draft:
        kind = settings.word("model.type") or "gpt2"
        if kind not in TYPES:
            raise InputError("levanter: model.type", kind, f"allowed: {', '.join(TYPES)}")
        sizes = {name: settings.integer(f"model.{setting}") for setting, name in FIELDS.items()}
        model: ModelFields = {"model_type": TYPES[kind]}
        model |= {name: value for name, value in sizes.items() if value is not None}
        tp = settings.integer("trainer.model_axis_size") or 1
        dp = options.divide_devices(tp, "the data axis takes the devices that are left")
        batch = (
            options.global_batch_size or settings.integer("trainer.train_batch_size") or DEFAULT_BATCH_SIZE
        )
        per_device = settings.integer("trainer.per_device_parallelism", minimum=-1)
        micro = per_device if per_device and per_device > 0 else max(batch // dp, 1)
        checkpoints = settings.text("model.gradient_checkpointing")
        plan = stated_plan(
            (tp, 1, 1, dp),
            3,
            dp,
            micro_batch_size=options.micro_batch_size or micro,
            recompute="none" if checkpoints in ("False", "false") else "full",
        )
        computes = re.search(r"c(?:ompute)?=(\w+)", settings.text("trainer.mp") or "")
        settings.used("trainer.fsdp_axis", "trainer.batch_axis")
        return Draft(
            plan,
            PRECISIONS.get(computes[1] if computes else "bf16", "bf16"),
            seq_len=settings.integer("model.seq_len")
            or settings.integer("model.max_seq_len")
            or DEFAULT_SEQ_LEN,
            global_batch_size=batch,
            model=model,
            has_class_defaults=True,
            unused=settings.unused(),
        )
