"""Megatron-LM's layers over pipeline stages and chunks: written for a plan, read back as chunks per stage.

Names: megatron/training/arguments.py and megatron/core/transformer/pipeline_parallel_layer_layout.py.
"""

import re

from tools.errors import InputError
from tools.frameworks.exporting import ExportJob, Settings
from tools.frameworks.importing import ImportOptions
from tools.frameworks.reading import SettingsReader

MAX_STAGES = 10_000


def uneven_stages(job: ExportJob, last_stage_name: str) -> Settings:
    """Layers that do not divide: embedding and loss count as layers, or the last stage takes fewer.

    TransformerConfig and the command line call the layers of the last stage differently.
    """
    plan, layers = job.plan, job.scenario.model.num_hidden_layers
    missing = -layers % (plan.pp * plan.vpp)
    if missing <= 2:
        flags = ("account_for_loss_in_pipeline_split", "account_for_embedding_in_pipeline_split")
        return dict.fromkeys(flags[:missing], True)
    if plan.vpp > 1:
        return {"pipeline_model_parallel_layout": _layout(job, (layers + missing) // (plan.pp * plan.vpp))}
    per_stage = -(-layers // plan.pp)
    last = layers - per_stage * (plan.pp - 1)
    if last < 1:
        reason = f"{layers} layers in {plan.pp} stages leave the last one empty"
        raise job.refuse("pp", reason)
    return {last_stage_name: last}


def _layout(job: ExportJob, places: int) -> str:
    """Three places are missing: embedding and loss take one each, and MTP (or nothing) the third.

    Letters as in megatron/core/transformer/pipeline_parallel_layer_layout.py.
    """
    if places < 2:
        raise job.refuse("vpp", "leaves no layer for the chunks of embedding and loss")
    middle = f"({'t' * places}|)*{job.plan.pp * job.plan.vpp - 2}"
    predictions = "m" * job.scenario.model.num_nextn_predict_layers
    return f"E{'t' * (places - 1)}|{middle}{'t' * (places - 2)}{predictions}L"


def chunks_per_stage(
    settings: SettingsReader, pp: int, options: ImportOptions, layers_in_file: int | None
) -> int:
    stated = settings.integer("num_virtual_stages_per_pipeline_rank")
    size = settings.integer("virtual_pipeline_model_parallel_size")
    per_chunk = settings.integer("num_layers_per_virtual_pipeline_stage")
    layout = settings.word("pipeline_model_parallel_layout")
    ends = [bool(settings.flag(f"account_for_{end}_in_pipeline_split")) for end in ("embedding", "loss")]
    settings.used("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers")
    settings.used("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage")
    if pp == 1:
        return 1
    if layout:
        return max(1, _count_stages(layout) // pp)
    if per_chunk:
        layers = options.get_num_layers(layers_in_file) + sum(ends)
        return max(1, layers // (pp * per_chunk))
    return stated or size or 1


def _count_stages(layout: str) -> int:
    """Bars separate stages; `(tt|)*29` repeats (pipeline_parallel_layer_layout.py)."""
    groups: list[tuple[str, str]] = re.findall(r"\(([^()]*)\)\*(\d{1,4})", layout)
    repeated = sum(group.count("|") * int(times) for group, times in groups)
    stages = repeated + re.sub(r"\([^()]*\)\*\d+", "", layout).count("|") + 1
    if stages > MAX_STAGES:
        raise InputError("megatron: pipeline_model_parallel_layout", layout, f"at most {MAX_STAGES} stages")
    return stages
