"""NeMo: writes overrides for a Megatron-Bridge recipe, as YAML; reads those and NeMo 1's configurations.

Megatron-Bridge merges the file into a recipe's ConfigContainer and accepts known fields only
(megatron/bridge/training/config.py and training/utils/omegaconf_utils.py of 0.3.1).
"""

from dataclasses import replace

from pydantic import JsonValue

from tools.errors import InputError
from tools.frameworks.exporting import ExportJob, SettingsTree, yaml_text
from tools.frameworks.format import SURE, Format, Keys, UnknownFile
from tools.frameworks.importing import Draft, ImportOptions, missing
from tools.frameworks.megatron import (
    FSDP_STAGES,
    FSDP_STRATEGIES,
    SAID,
    check_replicas,
    degree_arguments,
    draft_of_arguments,
    export_notes,
    recompute_arguments,
    setting_arguments,
)
from tools.frameworks.megatron_model import uneven_stages
from tools.frameworks.python_config import VARIABLE, PythonConfig, is_recipe, looks_like_python, parse_python
from tools.frameworks.reading import SettingsReader, parse_text
from tools.frameworks.shell import substitute
from tools.scenario.fields import JsonObject, build
from tools.scenario.spec import LoraSpec

# megatron/bridge/training/mixed_precision.py; without mixed precision a model is fp32.
MIXED_PRECISIONS = {
    "fp32": None,
    "fp16": "fp16_mixed",
    "bf16": "bf16_mixed",
    "fp8": "bf16_with_fp8_current_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}
NO_RECOMPUTE: SettingsTree = {
    "recompute_granularity": None,
    "recompute_method": None,
    "recompute_num_layers": None,
}
DDP_LEVERS = ("overlap_grad_reduce", "overlap_param_gather")
OVERLAP_LEVERS = ("tp_comm_overlap", "overlap_moe_expert_parallel_comm")
OVERLAP_CLASS = "megatron.bridge.training.comm_overlap.CommOverlapConfig"
OPTIMIZER_SETTINGS = (
    "optimizer_cpu_offload", "use_precision_aware_optimizer", "exp_avg_dtype", "exp_avg_sq_dtype",
    "main_grads_dtype",
)  # fmt: skip
LISTS = ("recompute_modules", "cuda_graph_scope", "offload_modules")
BY_RECIPE_NOTE = (
    "a mixed-precision recipe sets grad_reduce_in_fp32 and the layers in bf16 anew: in the script, state "
    "them on get_mixed_precision_config(NAME)"
)
MODEL_MARKS = {
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "micro_batch_size", "context_parallel_size",
}  # fmt: skip
RENAMED = {
    "encoder_seq_length": "seq_length",
    "sequence_length": "seq_length",
    "activations_checkpoint_granularity": "recompute_granularity",
    "activations_checkpoint_method": "recompute_method",
    "activations_checkpoint_num_layers": "recompute_num_layers",
    "override_vocab_size": "padded_vocab_size",
    "num_moe_experts": "num_experts",
    "fp8_hybrid": "fp8",
}
"""NeMo's and Megatron-Bridge's names of Megatron-LM's arguments."""
RECIPE_NOTE = (
    "the file changes a recipe: what it does not state is taken as bf16 with a distributed optimizer and no "
    "parallelism; training.precision and plan.FIELD state the recipe's own"
)
GATED = ("swiglu", "fast-swiglu", "geglu", "fast-geglu", "reglu", "fast-reglu")
HELPERS_MAY_SET = (
    ("global_batch_size", "training.global_batch_size", "global_batch_size"),
    ("micro_batch_size", "plan.micro_batch_size", "micro_batch_size"),
    ("tensor_model_parallel_size", "plan.tp", ""),
    ("pipeline_model_parallel_size", "plan.pp", ""),
    ("context_parallel_size", "plan.cp", ""),
    ("sequence_parallel", "plan.sequence_parallel", ""),
    ("expert_model_parallel_size", "plan.ep", ""),
)
"""Settings, their path, and the option that states them."""
SECTIONS = ("comm_overlap", "model", "train", "dataset", "ddp", "optimizer", "trainer")
"""The first that states a setting decides; Megatron-Bridge applies its overlap last."""
LORA_DIM, LORA_MODULES = 32, ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
"""Of megatron/bridge/peft/lora.py."""
MLP_MODULES = ("fc", "mlp", "h_to_4h", "all")
"""What the names of an MLP's modules hold, here and in NeMo 1; `all` is both parts."""
FULL_TUNING = ("", "none", "null")


class Nemo(Format):
    name = "nemo"
    framework = "megatron-core"
    reads = "NeMo and Megatron-Bridge YAML"
    writes = "YAML overrides of a Megatron-Bridge recipe"
    file_name = "nemo.yaml"
    judged_by = "megatron-core 0.16.1"
    has_levers = True
    says = SAID
    carries = ("recompute_layers", "recompute_modules")
    is_flat = True

    def settings(self, job: ExportJob, names: Keys) -> SettingsTree:
        written = super().settings(job, names)
        spelled = {new: old for old, new in RENAMED.items() if old in names}
        is_first = "num_nodes" in names  # NeMo 1, where all of it is the model's
        settings: SettingsTree = {}
        for name, value in written.items():
            section, _, leaf = name.rpartition(".")
            leaf = spelled.get(leaf, leaf)
            if not (is_first and section in ("dataset", "mixed_precision")):
                settings[f"{'model' if is_first else section}.{leaf}"] = value
        return settings

    def certainty(self, file: UnknownFile) -> int:
        if file.kind == "python":
            return SURE if is_recipe(file.text) else 0
        is_own = not MODEL_MARKS.isdisjoint(file.section("model")) or {"trainer", "exp_manager"} <= file.keys
        return SURE if is_own else 0

    def write(self, job: ExportJob) -> tuple[str, tuple[str, ...]]:
        """Writes every field, because a recipe has defaults of its own."""
        training, plan, is_fsdp = job.scenario.training, job.plan, job.zero_stage in FSDP_STAGES
        job.check_precision("Megatron-Bridge", MIXED_PRECISIONS)
        if job.zero_stage:
            check_replicas(job)
        levers: SettingsTree = job.lever_settings | setting_arguments(job)
        ddp_levers = {name: levers.pop(name) for name in DDP_LEVERS if name in levers}
        optimizer = {name: levers.pop(name) for name in OPTIMIZER_SETTINGS if name in levers}
        for name in ("grad_reduce_in_bf16", "accumulate_allreduce_grads_in_fp32"):
            levers.pop(name, None)
        # The optimizer's type says the gradients' too: they are reduced in what they are kept in.
        if gradients := training.gradient_dtype or optimizer.get("main_grads_dtype"):
            ddp_levers["grad_reduce_in_fp32"] = gradients == "fp32"
        if training.optimizer_state == "fp32":
            optimizer |= dict.fromkeys(("exp_avg_dtype", "exp_avg_sq_dtype"), "fp32")
        unchecked = bool(levers.pop("no_check_for_nan_in_loss_and_grad", None))
        if unchecked:
            ddp_levers["check_for_nan_in_grad"] = False
        if "cpu_offloading_num_layers" in levers:
            levers["cpu_offloading"] = True
        overlap_levers = {name: levers.pop(name) for name in OVERLAP_LEVERS if name in levers}
        recompute = {} if plan.recompute is None else NO_RECOMPUTE | recompute_arguments(plan)
        overlap: SettingsTree = {"_target_": OVERLAP_CLASS, "tp_comm_overlap": False, **overlap_levers}
        overrides: SettingsTree = {
            "model": {
                **degree_arguments(job),
                "virtual_pipeline_model_parallel_size": plan.vpp if plan.vpp > 1 else None,
                "sequence_parallel": plan.sequence_parallel,
                **uneven_stages(job, "num_layers_in_last_pipeline_stage"),
                "seq_length": training.seq_len,
                **recompute,
                **levers,
                **({"use_te_rng_tracker": True} if "cuda_graph_impl" in levers else {}),
                **({"gradient_accumulation_fusion": False} if is_fsdp else {}),
                # Fields of the configuration are lists where the command line takes several words.
                **{name: str(value).split() for name, value in (recompute | levers).items() if name in LISTS},
            },
            "train": {
                "micro_batch_size": plan.micro_batch_size,
                "global_batch_size": training.global_batch_size,
            },
            "dataset": {"sequence_length": training.seq_len},
            "ddp": {
                "use_distributed_optimizer": job.zero_stage > 0,
                "num_distributed_optimizer_instances": job.replicas if job.zero_stage else 1,
                "use_megatron_fsdp": is_fsdp,
                **({"data_parallel_sharding_strategy": FSDP_STRATEGIES[job.zero_stage]} if is_fsdp else {}),
                **ddp_levers,
            },
            "optimizer": {"use_distributed_optimizer": job.zero_stage > 0, **optimizer},
            **({"rng": {"te_rng_tracker": True}} if "cuda_graph_impl" in levers else {}),
            **({"rerun_state_machine": {"check_for_nan_in_loss": False}} if unchecked else {}),
            **({"comm_overlap": overlap} if overlap_levers else {}),  # with its class: a recipe may have none
            **({"checkpoint": {"ckpt_format": "fsdp_dtensor"}} if is_fsdp else {}),
            "mixed_precision": MIXED_PRECISIONS[training.precision],
        }
        comments = (
            f"Overrides of a Megatron-Bridge recipe for {job.scenario.cluster.num_devices} devices.",
            "Use: process_config_with_overrides(recipe_config, config_filepath='nemo.yaml')",
        )
        is_by_recipe = "grad_reduce_in_fp32" in ddp_levers or "first_last_layers_bf16" in levers
        notes = (*export_notes(job), *((BY_RECIPE_NOTE,) if is_by_recipe else ()))
        return yaml_text(comments, overrides), notes

    def read(self, text: str, options: ImportOptions) -> Draft:
        if looks_like_python(text):
            recipe = parse_python(text, options.variables.get(VARIABLE), options.find_module)
            values: JsonObject = {**recipe.sections}
            _refuse_open(recipe, options)
        else:
            values = parse_text(substitute(text, options.variables), "YAML")
        if "verification_index" in values or "items" in values:
            rule = "must be the configuration of a run, not a report about checkpoints"
            raise InputError("text", "a verification card", rule)
        if not isinstance(model := values.get("model"), dict):
            raise InputError("text", "no model section", "not a NeMo or Megatron-Bridge configuration")
        if "diffusion" in text.lower():
            raise InputError("text", "diffusion", "not supported: a diffusion model")
        if "t5" in str(values.get("name")).lower():
            raise InputError("nemo: name", values["name"], "not supported: an encoder-decoder model (T5)")
        arguments = _megatron_arguments(values)
        degrees = dict(options.overrides)
        for setting, path, option in HELPERS_MAY_SET:
            if path in degrees and not option:
                arguments.setdefault(setting, degrees[path])
        name = str(arguments.pop("pretrained_name", "") or "")
        changes_recipe = "trainer" not in values  # Megatron-Bridge: a recipe's own values are not stated
        if changes_recipe:
            arguments.setdefault("use_distributed_optimizer", True)
            if "mixed_precision" not in values and not arguments.keys() & {"bf16", "fp16", "fp8", "fp4"}:
                arguments["bf16"] = True
        draft = draft_of_arguments(SettingsReader(arguments, "nemo"), options)
        peft = values.get("peft") or model.get("peft")
        if isinstance(peft, dict) and (adapter := _adapter(SettingsReader(peft, "nemo: peft"), options)):
            draft = replace(draft, training=draft.training | {"lora": adapter})
        draft = replace(draft, notes=(*([RECIPE_NOTE] if changes_recipe else []), *draft.notes))
        # A recipe names its model, and states a few of its fields again.
        return replace(draft, model={}, model_name=name) if name else draft


def _refuse_open(recipe: PythonConfig, options: ImportOptions) -> None:
    """What a function sets whose source is not at hand is not assumed."""
    said = {name: value for section in recipe.sections.values() for name, value in section.items()}
    stated = dict(options.overrides)
    means_nothing = [] if options.is_moe({}) else ["plan.ep"]
    if said.get("tensor_model_parallel_size", stated.get("plan.tp", 1)) == 1:
        means_nothing.append("plan.sequence_parallel")
    open_paths = [
        path
        for setting, path, option in HELPERS_MAY_SET
        if setting not in said and path not in (*stated, *means_nothing)
        if not (option and getattr(options, option))
    ]
    if recipe.unread and open_paths:
        others = f" (also open: {', '.join(open_paths[1:])})" if open_paths[1:] else ""
        helpers = ", ".join(recipe.unread[:3])
        raise missing(
            open_paths[0], f"{helpers} may set it: give the file inside its checkout, or state it{others}"
        )


def _adapter(settings: SettingsReader, options: ImportOptions) -> LoraSpec | None:
    """`peft` of a Megatron-Bridge recipe, or `model.peft` of NeMo 1; None if all weights are trained."""
    if any(name.startswith("training.lora") for name, _ in options.overrides):
        return None
    if settings.has("peft_scheme"):
        kind, rank = settings.text("peft_scheme") or "", settings.integer("lora_tuning.adapter_dim")
        modules = settings.words("lora_tuning.target_modules") or ["attention"]
    else:
        kind = (settings.text("kind") or settings.text("_target_") or "").rpartition(".")[2]
        rank, modules = settings.integer("dim"), settings.words("target_modules") or [*LORA_MODULES]
    if kind.lower() in FULL_TUNING:
        return None
    if not kind.lower().endswith(("lora", "dora")):
        raise InputError(
            "nemo: peft", kind, "not read; training.lora states it, for example training.lora.rank=8"
        )
    has_mlp = [any(mark in name for mark in MLP_MODULES) for name in modules]
    parts = (("attention", not all(has_mlp) or "all" in modules), ("mlp", any(has_mlp)))
    fields = {"rank": rank or LORA_DIM, "targets": [part for part, is_tuned in parts if is_tuned]}
    return build(LoraSpec, fields, "training.lora.")


def _megatron_arguments(values: JsonObject) -> JsonObject:
    """The sections under Megatron's names; ${...} of OmegaConf that point elsewhere stay unread."""
    flat: dict[str, JsonValue] = {}
    for name in SECTIONS:
        section = values.get(name)
        for key, value in section.items() if isinstance(section, dict) else ():
            points_elsewhere = isinstance(value, str) and value.startswith("${")
            is_stated = value is not None and not isinstance(value, dict) and not points_elsewhere
            if key != "_target_" and is_stated:
                flat.setdefault(RENAMED.get(key, key), value)
            if key == "use_distributed_optimizer" and value is True:  # of ddp and optimizer, one will do
                flat[key] = True
    devices, nodes = flat.pop("devices", None), flat.pop("num_nodes", None)
    if isinstance(devices, int) and devices > 0:
        flat |= {"nproc_per_node": devices, "nnodes": nodes if isinstance(nodes, int) else 1}
    # Lightning's or Megatron-Bridge's word for the precision.
    mixed = values.get("mixed_precision")
    if isinstance(mixed, dict) and mixed.get("name"):
        # Of a Python recipe: applied last, it reduces gradients in fp32 unless it is told otherwise.
        whole, mixed = mixed.get("grad_reduce_in_fp32"), mixed["name"]
        flat["grad_reduce_in_fp32"] = whole if isinstance(whole, bool) else "fp16" not in str(mixed)[:4]
    words = (flat.pop("precision", None), mixed)
    precision, fp8 = str(next(filter(None, words), None)), flat.pop("fp8", None)
    if "nvfp4" in precision:
        flat |= {"bf16": True, "fp4": "e2m1"}
    elif "fp8" in precision or fp8:
        is_mx = "mxfp8" in precision or "fp8_mx" in precision
        flat |= {"bf16": True, "fp8": "hybrid", **({"fp8_recipe": "mxfp8"} if is_mx else {})}
    elif precision.startswith("bf16"):
        flat["bf16"] = True
    elif precision.startswith(("16", "fp16")):
        flat["fp16"] = True
    flat["swiglu"] = flat.pop("activation", None) in GATED or bool(flat.get("gated_linear_unit"))
    if flat.pop("share_embeddings_and_output_weights", None) is False:
        flat["untie_embeddings_and_output_weights"] = True
    if not flat.get("kv_channels"):
        flat.pop("kv_channels", None)
    return flat
