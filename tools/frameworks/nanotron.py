"""nanotron: writes and reads its YAML.

Names: src/nanotron/config/config.py, parallelism_config.py and models_config.py of huggingface/nanotron.
"""

from tools.frameworks.exporting import (
    RECOMPUTE_NOT_STATED,
    ExportJob,
    SettingsTree,
    first_names,
    nested,
    section_of,
    yaml_text,
)
from tools.frameworks.format import SURE, Format, UnknownFile
from tools.frameworks.importing import Draft, ImportOptions, ModelFields, read_levers, stated_plan
from tools.frameworks.reading import SettingsReader, parse_text

DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
ENGINES = {"1f1b": "1f1b", "afab": "gpipe"}
REDUCE_SCATTER = "REDUCE_SCATTER"
MODEL_FIELDS = (
    "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
    "vocab_size", "sliding_window",
)  # fmt: skip
MOE_FIELDS = {
    "num_experts": "num_experts",
    "top_k": "num_experts_per_tok",
    "moe_intermediate_size": "moe_intermediate_size",
    "shared_expert_intermediate_size": "shared_expert_intermediate_size",
}


class Nanotron(Format):
    name = framework = "nanotron"
    reads = "YAML"
    writes = "YAML sections of a nanotron run"
    file_name = "nanotron.yaml"
    judged_by = "huggingface/nanotron's own parser, 2026"
    has_levers = True

    def certainty(self, file: UnknownFile) -> int:
        is_own = "model_config" in file.section("model") or {"tokens", "parallelism"} <= file.keys
        return SURE if is_own else 0

    def write(self, job: ExportJob) -> tuple[str, tuple[str, ...]]:
        """The plan's sections; data, checkpoints and optimizer stay in the user's file."""
        plan, training = job.plan, job.scenario.training
        dtypes, engines = first_names(DTYPES), first_names(ENGINES)
        job.check_precision("nanotron", dtypes)
        if plan.vpp > 1 or (plan.pp > 1 and plan.schedule not in engines):
            reason = "nanotron runs 1f1b or all forward, all backward; one chunk per stage"
            raise job.refuse("schedule", reason)
        if job.zero_stage > 1:
            raise job.refuse("zero_stage", "nanotron shards optimizer state only; must be 0 or 1")
        if job.zero_stage == 1 and plan.dp_shard != plan.dp:
            raise job.refuse("dp_shard", f"nanotron shards over all data ranks; must be dp ({plan.dp})")
        if plan.recompute == "selective":
            raise job.refuse("recompute", "nanotron recomputes whole layers; must be none or full")
        parallelism: SettingsTree = {
            "dp": plan.dp,
            "pp": plan.pp,
            "tp": plan.tp,
            "expert_parallel_size": plan.ep,
            **({"context_parallel_size": plan.cp} if plan.cp > 1 else {}),  # ring attention, models/qwen.py
            "pp_engine": engines.get(plan.schedule, "1f1b"),
            "tp_mode": REDUCE_SCATTER if plan.sequence_parallel else "ALL_REDUCE",
            "tp_linear_async_communication": plan.sequence_parallel,
            **({} if plan.recompute is None else {"recompute_layer": plan.recompute == "full"}),
        }
        settings: SettingsTree = {
            "parallelism": parallelism,
            "tokens": {
                "micro_batch_size": plan.micro_batch_size,
                "batch_accumulation_per_replica": job.micro_batches,
                "sequence_length": training.seq_len,
            },
            "model": {"dtype": dtypes[training.precision]},
            "optimizer": {"zero_stage": job.zero_stage} | section_of(nested(job.lever_settings), "optimizer"),
        }
        comments = (
            f"nanotron settings for {job.scenario.cluster.num_devices} devices: merge into your own file.",
            "Use: torchrun ... run_train.py --config-file nanotron.yaml",
        )
        return yaml_text(comments, settings), () if plan.recompute else (RECOMPUTE_NOT_STATED,)

    def read(self, text: str, options: ImportOptions) -> Draft:
        settings = SettingsReader(parse_text(text, "YAML"), "nanotron")
        tp, pp, cp, dp = (
            settings.integer(f"parallelism.{name}") or 1
            for name in ("tp", "pp", "context_parallel_size", "dp")
        )
        micro = options.get_micro_batch_size(settings.integer("tokens.micro_batch_size"))
        steps = settings.integer("tokens.batch_accumulation_per_replica") or 1
        engine = settings.text("parallelism.pp_engine") or "1f1b"
        plan = stated_plan(
            (tp, pp, cp, dp),
            settings.integer("optimizer.zero_stage", minimum=0) or 0,
            dp,
            ep=settings.integer("parallelism.expert_parallel_size") or 1,
            micro_batch_size=micro,
            sequence_parallel=settings.text("parallelism.tp_mode") == REDUCE_SCATTER and tp > 1,
            recompute="full" if settings.flag("parallelism.recompute_layer") else "none",
            etp=1,
            schedule=ENGINES.get(engine.lower()) if pp > 1 else None,
        )
        settings.used("parallelism.tp_linear_async_communication")
        return Draft(
            plan,
            DTYPES.get(settings.word("model.dtype") or "bfloat16", "bf16"),
            seq_len=settings.integer("tokens.sequence_length"),
            global_batch_size=micro * steps * dp,
            model=_read_model(settings),
            training=read_levers(settings, self.framework),
            unused=settings.unused(),
        )


def _read_model(settings: SettingsReader) -> ModelFields:
    section = "model.model_config"
    fields: ModelFields = {name: settings.integer(f"{section}.{name}") for name in MODEL_FIELDS}
    if fields["num_hidden_layers"] is None:
        return {}
    fields["tie_word_embeddings"] = bool(settings.flag(f"{section}.tie_word_embeddings"))
    activation = settings.word(f"{section}.hidden_act") or "silu"
    fields["gated_mlp"] = activation in ("silu", "swish", "gelu_pytorch_tanh")
    moe = {name: settings.integer(f"{section}.moe_config.{key}") for key, name in MOE_FIELDS.items()}
    if moe["num_experts"]:
        if not settings.flag(f"{section}.moe_config.enable_shared_expert"):
            moe["shared_expert_intermediate_size"] = None
        fields |= moe
    return {name: value for name, value in fields.items() if value is not None}
