"""VeOmni: reads its YAML.

Names and defaults: veomni/arguments/arguments_types.py of ByteDance-Seed/VeOmni.
"""

from tools.errors import InputError
from tools.frameworks.exporting import ExportJob, SettingsTree
from tools.frameworks.format import SURE, Format, Keys, UnknownFile
from tools.frameworks.importing import Draft, ImportOptions, TrainingFields, divide_devices, stated_plan
from tools.frameworks.reading import SettingsReader
from tools.frameworks.trainer import read_lora

DEFAULT_SEQ_LEN = 2048
MODES = {"fsdp2": 3, "fsdp1": 3, "ddp": 0}
OTHER_MODELS = ("wan", "flux", "qwen_image", "qwenimage", "ltx", "movqgan", "seed_omni")
"""Parts of the paths of models that are no language model."""
ULYSSES_NOTE = "ulysses_size is taken as cp: sequences are split likewise, its all-to-all is priced as a ring"


class VeOmni(Format):
    name = "veomni"
    framework = "torch-fsdp2"
    reads = "VeOmni's YAML"

    def certainty(self, file: UnknownFile) -> int:
        train = file.section("train")
        is_own = {"accelerator", "ulysses_parallel_size", "data_parallel_mode"} & train or "wandb" in train
        return SURE if is_own and file.section("data") and file.section("model") else 0

    def settings(self, job: ExportJob, names: Keys) -> SettingsTree:
        plan = job.plan
        if plan.tp * plan.pp > 1:
            raise job.refuse("tp" if plan.tp > 1 else "pp", "VeOmni runs 1 only; must be 1")
        return {
            "train.accelerator.ulysses_size": plan.cp,
            "train.accelerator.ep_size": plan.ep,
            "train.accelerator.fsdp_config.fsdp_mode": "fsdp2" if job.zero_stage else "ddp",
            "train.micro_batch_size": plan.micro_batch_size,
            "train.gradient_checkpointing.enable": plan.recompute == "full",
        }

    def read_settings(self, settings: SettingsReader, options: ImportOptions) -> Draft:
        path = settings.text("model.model_path") or settings.text("model.config_path") or ""
        if any(word in path.lower() for word in OTHER_MODELS):
            raise InputError("veomni: model", path, "not supported: not a language model")
        if settings.flag("train.chunk_mbs_config.enable"):
            raise InputError("veomni: train.chunk_mbs_config", True, "not supported: batches in chunks")
        names = [("accelerator.ulysses_size", "ulysses_parallel_size")]
        names += [("accelerator.ep_size", "expert_parallel_size")]
        names += [("accelerator.dp_replicate_size", "data_parallel_replicate_size")]
        cp, ep, replicas = (  # today's names, and those of 0.1
            next((max(n, 1) for name in each if (n := settings.integer(f"train.{name}", -1)) is not None), 1)
            for each in names
        )
        dp = options.divide_devices(cp, "the data-parallel size follows from it")
        stage = MODES[
            settings.word("train.accelerator.fsdp_config.fsdp_mode", MODES)
            or settings.word("train.data_parallel_mode", MODES)
            or "fsdp2"
        ]
        micro = options.get_micro_batch_size(settings.integer("train.micro_batch_size") or 1)
        old, new = settings.flag("train.enable_gradient_checkpointing"), "train.gradient_checkpointing.enable"
        is_recomputed = settings.flag(new) is not False and old is not False
        reshards = settings.flag("train.accelerator.fsdp_config.reshard_after_forward")
        plan = stated_plan(
            (1, 1, cp, dp),
            stage,
            divide_devices(dp * cp, replicas, "dp_replicate_size"),
            ep=ep,
            micro_batch_size=micro,
            recompute="full" if is_recomputed else "none",
            reshard_after_forward=False if reshards is False else None,
        )
        mixed = settings.flag("train.accelerator.fsdp_config.mixed_precision.enable")
        training: TrainingFields = {"compile": True} if settings.flag("train.torch_compile.enable") else {}
        if rank := settings.integer("model.lora_config.rank"):
            training["lora"] = read_lora(rank, settings.items("model.lora_config.lora_modules"))
        if settings.flag("train.accelerator.offload.enable_activation"):
            training["activation_offload"] = True
        if settings.flag("train.accelerator.fsdp_config.offload"):
            training["optimizer_offload"] = True
        total = settings.integer("train.global_batch_size") or micro * dp
        return Draft(
            plan,
            "fp32" if mixed is False else "bf16",
            seq_len=settings.integer("data.max_seq_len") or DEFAULT_SEQ_LEN,
            global_batch_size=options.global_batch_size or total,
            training=training,
            model_name=path,
            notes=(ULYSSES_NOTE,) if cp > 1 else (),
            unused=settings.unused(),
        )
