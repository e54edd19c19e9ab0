"""GPT-NeoX: reads its YAML.

Names and defaults: megatron/neox_arguments/neox_args.py and deepspeed_args.py of EleutherAI/gpt-neox.
"""

from tools.errors import InputError
from tools.frameworks.deepspeed import OWN_KEYS
from tools.frameworks.exporting import ExportJob, SettingsTree
from tools.frameworks.format import SURE, Format, Keys, UnknownFile
from tools.frameworks.importing import Draft, ImportOptions, ModelFields, stated_plan
from tools.frameworks.reading import SettingsReader, parse_text

GATED = ("swiglu", "geglu", "reglu", "bilinear", "glu")
OTHER_MIXERS = {"rwkv", "mamba", "gmlp", "amlp", "aft"}
PRECISIONS = {"bfloat16": "bf16", "fp16": "fp16", "fp32": "fp32"}
WIDTH_STEP = 256
"""Gated parts are a third of the stated width, up to this multiple (LLaMAParallelMLP)."""


class Neox(Format):
    name = "neox"
    framework = "deepspeed"
    reads = "GPT-NeoX YAML; the vocabulary is given beside it"

    def certainty(self, file: UnknownFile) -> int:
        own = ("pipe_parallel_size", "model_parallel_size", "gpt_j_residual", "comet_project")
        # DeepSpeed's own parser takes JSON only, GPT-NeoX's also comments and trailing commas.
        is_commented = file.kind == "JSON with comments" and "#" in file.text and file.has_any(*OWN_KEYS)
        return SURE if file.has_any(*own) or is_commented else 0

    def settings(self, job: ExportJob, names: Keys) -> SettingsTree:
        plan = job.plan
        return {
            "model_parallel_size": plan.tp,
            "pipe_parallel_size": plan.pp,
            "context_parallel_size": plan.cp,
            "train_micro_batch_size_per_gpu": plan.micro_batch_size,
            "gas" if "gas" in names else "gradient_accumulation_steps": job.micro_batches,
            "zero_optimization.stage": job.zero_stage,
            "moe_expert_parallel_size": plan.ep,
            "sequence_parallel": plan.sequence_parallel,
            "checkpoint_activations": plan.recompute == "full",
        }

    def read(self, text: str, options: ImportOptions) -> Draft:
        values = {key.replace("-", "_"): value for key, value in parse_text(text, "YAML").items()}
        settings = SettingsReader(values, "neox")
        model = _read_model(settings)
        if not model and options.model is None:
            rule = "must include the model's part of the GPT-NeoX configuration; join the two files"
            raise InputError("text", "no num_layers", rule)
        tp = settings.integer("model_parallel_size", minimum=0) or 1
        pp = settings.integer("pipe_parallel_size", minimum=0) or 1
        cp = settings.integer("context_parallel_size") or 1
        dp = options.divide_devices(tp * pp * cp, "the data-parallel size follows from it")
        micro = options.micro_batch_size or settings.integer("train_micro_batch_size_per_gpu")
        steps = settings.integer("gradient_accumulation_steps") or settings.integer("gas") or 1
        total = options.global_batch_size or settings.integer("train_batch_size")
        if micro is None and total is not None:
            micro = max(total // (steps * dp), 1)
        micro = options.get_micro_batch_size(micro)
        offload = settings.flag("zero_optimization.cpu_offload") or settings.has(
            "zero_optimization.offload_optimizer"
        )
        plan = stated_plan(
            (tp, pp, cp, dp),
            settings.integer("zero_optimization.stage", minimum=0) or 0,
            dp,
            ep=settings.integer("moe_expert_parallel_size") or 1,
            micro_batch_size=micro,
            sequence_parallel=bool(settings.flag("sequence_parallel")),
            recompute="full" if settings.flag("checkpoint_activations") else "none",
        )
        half = next((name for name in ("fp16", "bf16") if settings.flag(f"{name}.enabled")), None)
        return Draft(
            plan,
            half or PRECISIONS.get(settings.word("precision") or "", "fp16"),
            seq_len=settings.integer("seq_length"),
            global_batch_size=total or micro * steps * dp,
            model=model,
            training={"optimizer_offload": True} if offload else {},
            unused=settings.unused(),
        )


def _read_model(settings: SettingsReader) -> ModelFields:
    hidden, layers = settings.integer("hidden_size"), settings.integer("num_layers")
    if hidden is None or layers is None:
        return {}
    gated = (settings.word("activation") or "gelu") in GATED
    width, step = settings.integer("intermediate_size"), settings.integer("mlp_multiple_of") or WIDTH_STEP
    if gated:
        width = -(-(width or 8 * hidden) // 3 // step) * step
    experts = settings.integer("moe_num_experts") or settings.integer("num_experts") or 1
    model: ModelFields = {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": settings.integer("num_attention_heads"),
        "num_key_value_heads": settings.integer("num_kv_heads"),
        "intermediate_size": width or 4 * hidden,
        "gated_mlp": gated,
        "tie_word_embeddings": not settings.flag("no_weight_tying"),
        "vocab_size": settings.integer("padded_vocab_size") or settings.integer("vocab_size"),
        "sliding_window": settings.integer("sliding_window_width"),
    }
    if experts > 1:
        topk = settings.integer("moe_top_k") or settings.integer("moe_router_topk") or 1
        sizes = {"num_experts_per_tok": topk, "moe_intermediate_size": width or 4 * hidden}
        model |= {"num_experts": experts, **sizes}
    # `[["flash", "local"], 12]`: the kinds of layers that repeat.
    groups = [group[0] for group in settings.items("attention_config") if isinstance(group, list) and group]
    kinds = {str(kind) for group in groups if isinstance(group, list) for kind in group}
    if other := kinds & OTHER_MIXERS:
        raise InputError("neox: attention_config", min(other), "not supported in a GPT-NeoX configuration")
    return {name: value for name, value in model.items() if value is not None}
