"""MaxText: writes and reads YAML that overrides base.yml, with the mesh split into ICI and DCN axes.

Names: src/maxtext/configs/base.yml and types.py of AI-Hypercomputer/maxtext, commit e591f30.
"""

import math

from tools.errors import InputError
from tools.frameworks.exporting import RECOMPUTE_NOT_STATED, ExportJob, SettingsTree, first_names, yaml_text
from tools.frameworks.format import SURE, Format, UnknownFile
from tools.frameworks.importing import Draft, ImportOptions, divide_devices, read_levers, stated_plan
from tools.frameworks.maxtext_model import read_model
from tools.frameworks.reading import SettingsReader
from tools.hardware import get_device
from tools.scenario.fields import usable_count

# From the axis with the most traffic to the one with the least: the first to be kept inside a slice.
INNERMOST_FIRST = ("tensor", "tensor_sequence", "context", "expert", "fsdp", "data", "pipeline")
AXES = (*INNERMOST_FIRST, "fsdp_transpose")
LEFTOVER_AXES = {"ici": "fsdp", "dcn": "data"}  # the axes that are -1 in base.yml
DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
QUANTIZED_DTYPE = "bfloat16"
QUANTIZATIONS = {
    "fp8": "fp8", "fp8_full": "fp8", "fp8_gpu": "fp8", "nanoo_fp8": "fp8", "fp8_nanoo": "fp8",
    "te_fp8_delayedscaling": "fp8", "te_fp8_currentscaling": "fp8", "te_mxfp8": "mxfp8",
    "te_nvfp4": "nvfp4", "te_nvfp4_no_rht": "nvfp4", "int8": "int8",
}  # fmt: skip
# "minimal" keeps the results of all matrix products and recomputes what is cheap. Every other policy keeps
# some of them: "selective" is the nearest word.
REMAT_POLICIES = {"none": "none", "minimal": "selective", "full": "full"}
DEFAULT_PER_DEVICE_BATCH_SIZE = 12.0  # base.yml
DEFAULT_SEQ_LEN = 2048  # base.yml
OFFLOADING = "minimal_offloaded"
MARKS = (
    "base_config", "base_emb_dim", "base_num_decoder_layers", "decoder_block", "per_device_batch_size",
)  # fmt: skip


class MaxText(Format):
    name = framework = "maxtext"
    reads = "YAML on top of base.yml, also its model files"
    writes = "YAML on top of base.yml"
    file_name = "maxtext.yml"
    judged_by = "the rules of MaxText's configs/types.py, commit e591f30"
    has_levers = True
    says = ("activation_offload",)

    def certainty(self, file: UnknownFile) -> int:
        has_axes = any(key.startswith(("ici_", "dcn_")) for key in file.keys)
        return SURE if has_axes or file.has_any(*MARKS) else 0

    def write(self, job: ExportJob) -> tuple[str, tuple[str, ...]]:
        plan, scenario = job.plan, job.scenario
        training, model, cluster = scenario.training, scenario.model, scenario.cluster
        device = get_device(cluster.device, cluster.overrides)
        # A slice divides the devices and the axes multiply to the devices, so taking the greatest common
        # divisor axis by axis fills the slice exactly.
        sizes = axis_sizes(job)
        largest = device.fast_domain_devices if device.torus_dimensions else cluster.devices_per_node
        left, inside = math.gcd(cluster.num_devices, min(largest, cluster.num_devices)), dict[str, int]()
        for axis in INNERMOST_FIRST:
            inside[axis] = math.gcd(sizes[axis], left)
            left //= inside[axis]
        # MaxText counts the batch per device, whatever the axes: micro-batch * dp / devices, or a fraction.
        sequences = plan.micro_batch_size * plan.dp if plan.pp == 1 else training.global_batch_size
        per_device = sequences / cluster.num_devices
        if int(cluster.num_devices * per_device) != sequences:
            over = f"{sequences} sequences over {cluster.num_devices} devices"
            raise job.refuse("micro_batch_size", f"{over} is a fraction that MaxText would round down")
        settings: SettingsTree = {
            "base_config": "base.yml",
            "hardware": "tpu" if device.vendor == "google" else "gpu",
            **{f"ici_{axis}_parallelism": inside[axis] for axis in INNERMOST_FIRST},
            **{f"dcn_{axis}_parallelism": sizes[axis] // inside[axis] for axis in INNERMOST_FIRST},
            **({"shard_optimizer_over_data": True} if job.zero_stage == 1 else {}),
            "max_target_length": training.seq_len,
            "per_device_batch_size": int(per_device) if per_device.is_integer() else per_device,
            "gradient_accumulation_steps": job.micro_batches if plan.pp == 1 else 1,
        }
        if plan.pp > 1:
            chunks, layers = plan.pp * plan.vpp, model.num_hidden_layers
            # Leading dense layers of an MoE model may stay outside the pipeline.
            piped = layers if layers % chunks == 0 else layers - model.first_k_dense_replace
            settings |= {
                "num_pipeline_microbatches": job.micro_batches,
                "num_pipeline_repeats": plan.vpp,
                "num_layers_per_pipeline_stage": piped // chunks,
                "pipeline_parallel_layers": piped,
            }
        if quantization := first_names(QUANTIZATIONS).get(training.precision):
            settings |= {"dtype": QUANTIZED_DTYPE, "quantization": quantization}
        else:
            settings["dtype"] = first_names(DTYPES)[training.precision]
        settings |= job.lever_settings
        offloads = bool(training.activation_offload) and plan.recompute == "selective"
        if plan.recompute is not None:
            policy = first_names(REMAT_POLICIES)[plan.recompute]
            settings["remat_policy"] = OFFLOADING if offloads else policy
        comments = (
            f"MaxText settings for {cluster.num_devices} devices, on top of base.yml.",
            "Use: python3 -m maxtext.trainers.pre_train.train maxtext.yml model_name=... run_name=...",
        )
        notes = [] if plan.recompute else [RECOMPUTE_NOT_STATED]
        if training.activation_offload and (not offloads or training.activation_offload is not True):
            notes.append(f"activation_offload: {OFFLOADING} is for selective recompute, and for all layers")
        if model.is_moe and plan.tp > 1 and plan.etp == 1:
            notes.append(
                f"MaxText splits the experts over the tensor axis too: etp is {plan.tp} there, not 1"
            )
        if not training.flash_attention:
            notes.append("set attention=dot_product to train without flash attention")
        return yaml_text(comments, settings), tuple(notes)

    def read_settings(self, settings: SettingsReader, options: ImportOptions) -> Draft:
        axes = _read_axes(settings, options)
        tp, pp, cp = axes["tensor"] * axes["tensor_sequence"], axes["pipeline"], axes["context"]
        dp = axes["data"] * axes["fsdp"] * axes["fsdp_transpose"] * axes["expert"]
        stated = read_model(settings)
        is_whole = "hidden_size" in stated and "num_hidden_layers" in stated
        layers = usable_count(stated.get("num_hidden_layers")) if is_whole else 0
        micro, total = _batch(settings, tp * pp * cp * dp, dp, pp)
        weights = axes["fsdp"] * axes["fsdp_transpose"] * axes["context"] * axes["expert"]
        over_data = settings.flag("shard_optimizer_over_data")
        stage, ranks = (3, weights) if weights > 1 else (int(bool(over_data)), dp)
        remat = settings.word("remat_policy") or "full"
        plan = stated_plan(
            (tp, pp, cp, dp),
            stage,
            ranks,
            ep=axes["expert"],
            micro_batch_size=micro,
            vpp=_repeats(settings, pp, options, layers or None),
            sequence_parallel=axes["tensor_sequence"] > 1,
            recompute=REMAT_POLICIES.get(remat, "selective"),
        )
        for name in ("base_config", "hardware"):
            settings.word(name)
        dtype = settings.word("dtype", DTYPES) or "bfloat16"
        quantization = settings.word("quantization", ("", *QUANTIZATIONS))
        return Draft(
            plan,
            QUANTIZATIONS[quantization] if quantization else DTYPES[dtype],
            seq_len=settings.integer("max_target_length") or DEFAULT_SEQ_LEN,
            global_batch_size=total,
            model=stated if is_whole else {},
            model_changes={} if is_whole else stated,
            model_name=settings.word("model_name") or "",
            training=read_levers(settings, self.framework)
            | ({"activation_offload": True} if remat == OFFLOADING else {}),
            unused=settings.unused(),
        )


def axis_sizes(job: ExportJob) -> dict[str, int]:
    """The mesh axes that the plan fills; all others stay 1."""
    plan, split = job.plan, job.plan.cp * job.plan.ep
    if job.zero_stage == 2:
        raise job.refuse("zero_stage", "MaxText shards weights (3), optimizer state (1) or nothing (0)")
    if job.zero_stage == 1 and plan.dp_shard != plan.dp:
        reason = f"shard_optimizer_over_data takes the whole data axis; must be dp ({plan.dp})"
        raise job.refuse("dp_shard", reason)
    return {
        "tensor": 1 if plan.sequence_parallel else plan.tp,
        "tensor_sequence": plan.tp if plan.sequence_parallel else 1,
        "context": plan.cp,
        "expert": plan.ep,
        "fsdp": plan.dp_shard // split if job.zero_stage == 3 else 1,
        "data": plan.data_ranks // plan.dp_shard if job.zero_stage == 3 else plan.dp,
        "pipeline": plan.pp,
    }


def _read_axes(settings: SettingsReader, options: ImportOptions) -> dict[str, int]:
    """Sizes inside a slice times sizes across slices; -1 takes what is left of a slice, or of the slices."""
    across, inside = _read_level(settings, "dcn"), _read_level(settings, "ici")
    open_axis, slices = _open_axis(across, "dcn")
    if open_axis:
        # The number of slices defaults to 1 although the file itself may state more.
        if options.num_slices % slices and options.num_slices != 1:
            rule = f"must be a multiple of the file's dcn degrees ({slices})"
            raise InputError("cluster.num_slices", options.num_slices, rule)
        across[open_axis] = max(options.num_slices // slices, 1)
        slices *= across[open_axis]
    open_axis, product = _open_axis(inside, "ici")
    if open_axis:
        why = "one ici axis is -1 and takes the devices that are left (base.yml: ici_fsdp_parallelism)"
        per_slice = divide_devices(options.get_num_devices(why), slices, "the slices")
        inside[open_axis] = divide_devices(per_slice, product, "the file's ici degrees")
    return {axis: inside[axis] * across[axis] for axis in AXES}


def _read_level(settings: SettingsReader, level: str) -> dict[str, int]:
    sizes = {}
    for axis in AXES:
        stated = settings.integer(f"{level}_{axis}_parallelism", minimum=-1)
        default = -1 if axis == LEFTOVER_AXES[level] else 1
        sizes[axis] = default if stated is None else stated or 1
    return sizes


def _open_axis(sizes: dict[str, int], level: str) -> tuple[str | None, int]:
    """The one axis that is -1, and the product of the others."""
    open_axes = [axis for axis, size in sizes.items() if size == -1]
    if len(open_axes) > 1:
        raise InputError(f"maxtext: {level}_{open_axes[1]}_parallelism", -1, "only one axis may be -1")
    return next(iter(open_axes), None), abs(math.prod(sizes.values()))


def _batch(settings: SettingsReader, devices: int, dp: int, pp: int) -> tuple[int, int]:
    """Sequences of a micro-batch and of a step."""
    per_device = settings.number("per_device_batch_size") or DEFAULT_PER_DEVICE_BATCH_SIZE
    steps = settings.integer("gradient_accumulation_steps") or 1
    in_pipeline = settings.integer("num_pipeline_microbatches", minimum=-1)
    sequences, batches = int(devices * per_device), 1
    if pp > 1:
        batches = in_pipeline if in_pipeline and in_pipeline > 0 else pp
    micro, rest = divmod(sequences, dp * batches)
    if rest or micro < 1:
        rule = f"{sequences} sequences must divide over {dp} data ranks * {batches} micro-batches"
        raise InputError("maxtext: per_device_batch_size", per_device, rule)
    return micro, sequences * steps


def _repeats(settings: SettingsReader, pp: int, options: ImportOptions, layers_in_file: int | None) -> int:
    stated = settings.integer("num_pipeline_repeats", minimum=-1)
    per_stage = settings.integer("num_layers_per_pipeline_stage") or 1
    piped = settings.integer("pipeline_parallel_layers", minimum=-1)
    if pp == 1:
        return 1
    if stated and stated > 0:
        return stated
    layers = piped if piped and piped > 0 else options.get_num_layers(layers_in_file)
    return max(1, layers // (pp * per_stage))
