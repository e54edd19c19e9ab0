"""NeMo: writes overrides for a Megatron-Bridge recipe, as YAML; reads those and NeMo 1's configurations.

Megatron-Bridge merges the file into a recipe's ConfigContainer and accepts known fields only
(megatron/bridge/training/config.py and training/utils/omegaconf_utils.py of 0.3.1).
"""

from dataclasses import replace

from tools.errors import InputError
from tools.frameworks.exporting import Export, ExportJob, Settings, yaml_text
from tools.frameworks.importing import Draft, ImportOptions
from tools.frameworks.megatron import (
    FSDP_STAGES,
    FSDP_STRATEGIES,
    check_replicas,
    degree_arguments,
    draft_of_arguments,
    export_notes,
    recompute_arguments,
)
from tools.frameworks.megatron_model import uneven_stages
from tools.frameworks.python_config import VARIABLE, looks_like_python, parse_python
from tools.frameworks.reading import JsonObject, SettingsReader, parse_yaml
from tools.frameworks.shell import substitute

# megatron/bridge/training/mixed_precision.py; without mixed precision a model is fp32.
MIXED_PRECISIONS = {
    "fp32": None,
    "fp16": "fp16_mixed",
    "bf16": "bf16_mixed",
    "fp8": "bf16_with_fp8_current_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}
NO_RECOMPUTE: Settings = {
    "recompute_granularity": None,
    "recompute_method": None,
    "recompute_num_layers": None,
}
DDP_LEVERS = ("overlap_grad_reduce", "overlap_param_gather")
OVERLAP_LEVERS = ("tp_comm_overlap", "overlap_moe_expert_parallel_comm")
OVERLAP_CLASS = "megatron.bridge.training.comm_overlap.CommOverlapConfig"
LISTS = ("recompute_modules", "cuda_graph_scope")


def export_nemo(job: ExportJob) -> Export:
    """Writes every field, because a recipe has defaults of its own."""
    training, plan = job.scenario.training, job.plan
    if training.precision not in MIXED_PRECISIONS:
        raise job.refuse_precision("Megatron-Bridge", MIXED_PRECISIONS)
    overrides: Settings = {
        "model": _model(job),
        "train": {"micro_batch_size": plan.micro_batch_size, "global_batch_size": training.global_batch_size},
        "dataset": {"sequence_length": training.seq_len},
        "ddp": _ddp(job),
        "optimizer": {"use_distributed_optimizer": job.zero_stage > 0},
        **_overlap(job),
        **({"checkpoint": {"ckpt_format": "fsdp_dtensor"}} if job.zero_stage in FSDP_STAGES else {}),
        "mixed_precision": MIXED_PRECISIONS[training.precision],
    }
    comments = (
        f"Overrides of a Megatron-Bridge recipe for {job.scenario.cluster.num_devices} devices.",
        "Use: process_config_with_overrides(recipe_config, config_filepath='nemo.yaml')",
    )
    return Export("nemo", "nemo.yaml", yaml_text(comments, overrides), export_notes(job))


def _model(job: ExportJob) -> Settings:
    plan = job.plan
    recompute = {} if plan.recompute is None else NO_RECOMPUTE | recompute_arguments(plan)
    levers = {
        name: value
        for name, value in job.lever_settings.items()
        if name not in (*DDP_LEVERS, *OVERLAP_LEVERS)
    }
    graphs = {"use_te_rng_tracker": True} if "cuda_graph_impl" in levers else {}
    fsdp = {"gradient_accumulation_fusion": False} if job.zero_stage in FSDP_STAGES else {}
    # Fields of the configuration are lists where the command line takes several words.
    lists = {name: str(value).split() for name, value in (recompute | levers).items() if name in LISTS}
    return {
        **degree_arguments(job),
        "virtual_pipeline_model_parallel_size": plan.vpp if plan.vpp > 1 else None,
        "sequence_parallel": plan.sequence_parallel,
        **uneven_stages(job, "num_layers_in_last_pipeline_stage"),
        "seq_length": job.scenario.training.seq_len,
        **recompute,
        **levers,
        **graphs,
        **fsdp,
        **lists,
    }


def _overlap(job: ExportJob) -> Settings:
    """With its class, as a recipe may have none."""
    levers: Settings = {name: value for name, value in job.lever_settings.items() if name in OVERLAP_LEVERS}
    if not levers:
        return {}
    section: Settings = {"_target_": OVERLAP_CLASS, "tp_comm_overlap": False, **levers}
    return {"comm_overlap": section}


def _ddp(job: ExportJob) -> Settings:
    if job.zero_stage:
        check_replicas(job)
    settings: Settings = {
        "use_distributed_optimizer": job.zero_stage > 0,
        "num_distributed_optimizer_instances": job.replicas if job.zero_stage else 1,
        "use_megatron_fsdp": job.zero_stage in FSDP_STAGES,
    }
    if job.zero_stage in FSDP_STAGES:
        settings["data_parallel_sharding_strategy"] = FSDP_STRATEGIES[job.zero_stage]
    return settings | {name: value for name, value in job.lever_settings.items() if name in DDP_LEVERS}


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
RECIPE_DEFAULTS: JsonObject = {"use_distributed_optimizer": True}
RECIPE_NOTE = (
    "the file changes a recipe: what it does not state is taken as bf16 with a distributed optimizer and no "
    "parallelism; --precision and --set plan.FIELD=VALUE state the recipe's own"
)
GATED = ("swiglu", "fast-swiglu", "geglu", "fast-geglu", "reglu", "fast-reglu")
SECTIONS = ("model", "train", "dataset", "ddp", "optimizer", "trainer", "comm_overlap")


def import_nemo(text: str, options: ImportOptions) -> Draft:
    if looks_like_python(text):
        values = parse_python(text, options.variables.get(VARIABLE))
    else:
        values = parse_yaml(substitute(text, options.variables))
    if "verification_index" in values or "items" in values:
        raise InputError(
            "FILE",
            "a verification card",
            "must be the configuration of a run, not a report about checkpoints",
        )
    if not isinstance(values.get("model"), dict):
        raise InputError("FILE", "no model section", "not a NeMo or Megatron-Bridge configuration")
    if "diffusion" in text.lower():
        raise InputError("FILE", "diffusion", "not supported: a diffusion model")
    arguments = _arguments(values)
    name = str(arguments.pop("pretrained_name", "") or "")
    notes: tuple[str, ...] = ()
    if (
        "trainer" not in values
    ):  # Megatron-Bridge: the file changes a recipe, whose own values it does not state
        notes = (RECIPE_NOTE,)
        arguments = {**RECIPE_DEFAULTS, **arguments}
        if "mixed_precision" not in values and not arguments.keys() & {"bf16", "fp16", "fp8", "fp4"}:
            arguments["bf16"] = True
    draft = draft_of_arguments(SettingsReader(arguments, "nemo"), options)
    draft = replace(draft, notes=(*notes, *draft.notes))
    # A recipe names its model, and states a few of its fields again.
    return replace(draft, model={}, model_name=name) if name else draft


def _arguments(values: JsonObject) -> JsonObject:
    """The sections under Megatron's names; ${...} of OmegaConf that point elsewhere stay unread."""
    flat: JsonObject = {}
    for name in SECTIONS:
        section = values.get(name)
        for key, value in section.items() if isinstance(section, dict) else ():
            if (
                key != "_target_"
                and not isinstance(value, dict)
                and not (isinstance(value, str) and value.startswith("${"))
            ):
                flat.setdefault(RENAMED.get(key, key), value)
    devices, nodes = flat.pop("devices", None), flat.pop("num_nodes", None)
    if isinstance(devices, int) and devices > 0:
        flat |= {"nproc_per_node": devices, "nnodes": nodes if isinstance(nodes, int) else 1}
    fp8 = flat.pop("fp8", None)
    flat |= _precision_arguments(
        str(
            flat.pop("precision", None) or flat.pop("mixed_precision", None) or values.get("mixed_precision")
        ),
        bool(fp8),
    )
    activation = flat.pop("activation", None)
    flat["swiglu"] = activation in GATED or bool(flat.get("gated_linear_unit"))
    if flat.pop("share_embeddings_and_output_weights", None) is False:
        flat["untie_embeddings_and_output_weights"] = True
    if not flat.get("kv_channels"):
        flat.pop("kv_channels", None)
    return flat


def _precision_arguments(precision: str, fp8: bool) -> JsonObject:
    """Of Lightning's or Megatron-Bridge's word for it."""
    if "nvfp4" in precision:
        return {"bf16": True, "fp4": "e2m1"}
    if "fp8" in precision or fp8:
        recipe: JsonObject = {"fp8_recipe": "mxfp8"} if "mxfp8" in precision or "fp8_mx" in precision else {}
        return {"bf16": True, "fp8": "hybrid", **recipe}
    if precision.startswith("bf16"):
        return {"bf16": True}
    return {"fp16": True} if precision.startswith(("16", "fp16")) else {}
