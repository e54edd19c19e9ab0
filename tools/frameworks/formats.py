"""The registry of formats: how each is written and read, and whose rules a plan must obey to be written (a
plan may be legal for the framework it was made for and not for the one it is exported to).

Also a first scenario from a model and a cluster alone, for `asap optimize --devices` and the form of a new
session: what neither states is assumed, and every assumption is named.
"""

import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import kb_seed
from tools.errors import InputError
from tools.frameworks import (
    accelerate,
    automodel,
    deepspeed,
    finetuning,
    huggingface,
    levanter,
    maxtext,
    megatron,
    nanotron,
    nemo,
    neox,
    torchtitan,
)
from tools.frameworks.exporting import Export, ExportJob, chosen_levers, stated_settings
from tools.frameworks.importing import Draft, ImportedScenario, ImportOptions, assemble, missing
from tools.frameworks.reading import parse_json
from tools.frameworks.recognition import recognise
from tools.scenario import Facts, Scenario, check_plan, columns_of, did_you_mean, get_framework
from tools.scenario.fields import JsonObject
from tools.scenario.spec import FRAMEWORK_ALIASES

Exporter = Callable[[ExportJob], Export]
Importer = Callable[[str, ImportOptions], Draft]


@dataclass(frozen=True, slots=True)
class Format:
    """How one kind of configuration file is written and read; None if it is not."""

    name: str
    framework: str | Callable[[ExportJob], str] | None
    """The framework it belongs to; a function if that depends on the plan, None if it belongs to none."""
    export: Exporter | None = None
    import_: Importer | None = None
    has_levers: bool = False
    """Whether the exporter writes the framework's levers."""
    dials_recompute: bool = False
    """Whether it can say which layers or modules are recomputed."""


REGISTRY = {
    format.name: format
    for format in (
        Format("torchtitan", "torchtitan", torchtitan.export_torchtitan, torchtitan.import_torchtitan, True),
        Format("megatron", "megatron-core", megatron.export_megatron, megatron.import_megatron, True, True),
        Format("nemo", "megatron-core", nemo.export_nemo, nemo.import_nemo, True, True),
        Format("deepspeed", "deepspeed", deepspeed.export_deepspeed, deepspeed.import_deepspeed, True),
        Format("maxtext", "maxtext", maxtext.export_maxtext, maxtext.import_maxtext, True),
        Format(
            "accelerate",
            accelerate.engine_framework,
            accelerate.export_accelerate,
            accelerate.import_accelerate,
        ),
        Format("nanotron", "nanotron", nanotron.export_nanotron, nanotron.import_nanotron),
        Format("automodel", "torch-fsdp2", automodel.export_automodel, automodel.import_automodel),
        Format("axolotl", None, import_=finetuning.import_axolotl),
        Format("llamafactory", None, import_=finetuning.import_llamafactory),
        Format("trl", None, import_=finetuning.import_trl),
        Format("neox", None, import_=neox.import_neox),
        Format("levanter", None, import_=levanter.import_levanter),
        Format(
            "huggingface",
            huggingface.engine_framework,
            huggingface.export_huggingface,
            huggingface.import_huggingface,
        ),
    )
}
FORMAT_ALIASES = {
    "megatron-core": "megatron",
    "megatron-lm": "megatron",
    "hf": "huggingface",
    "fsdp": "accelerate",
    "torch-fsdp": "accelerate",
    "torch-fsdp2": "accelerate",
}
"""A framework's name where its format has another."""
EXPORT_FORMATS = tuple(name for name, format in REGISTRY.items() if format.export)
IMPORT_FORMATS = tuple(name for name, format in REGISTRY.items() if format.import_)


def export_plan(scenario: Scenario, format: str) -> Export:
    """The scenario's plan in the named format; raises InputError if the format cannot express it."""
    format = FORMAT_ALIASES.get(format, format)
    known = REGISTRY.get(format)
    if known is None or known.export is None:
        raise InputError("--format", format, did_you_mean(format, EXPORT_FORMATS))
    if scenario.plan is None:
        raise InputError("plan", None, "an export needs a plan; 'asap optimize' proposes one")
    job = ExportJob(scenario, scenario.plan)
    framework = known.framework(job) if callable(known.framework) else known.framework
    if framework is not None:
        check_for_framework(job, framework)
        if known.has_levers:
            job = replace(job, levers=chosen_levers(scenario, framework))
    if not known.dials_recompute:
        _refuse_recompute_dial(job, format)
    export = known.export(job)
    return replace(export, notes=(*export.notes, *_left_out(job, format)))


def _refuse_recompute_dial(job: ExportJob, format: str) -> None:
    for field, what in (("recompute_layers", "layers"), ("recompute_modules", "modules")):
        if getattr(job.plan, field) is not None:
            raise job.refuse(field, f"{format} has no setting for which {what} are recomputed; leave it out")


def _left_out(job: ExportJob, format: str) -> tuple[str, ...]:
    """Of settings that are on in the scenario and that the file does not state."""
    written = {lever.setting for lever in job.levers}
    stated = stated_settings(job.scenario)
    return tuple(
        f"{name} is left out: {format} does not offer it for this plan, release and device"
        for name, value in stated.items()
        if value is not False and name not in written
    )


def check_for_framework(job: ExportJob, framework: str) -> None:
    """Raises InputError for the first rule of the target framework that the plan breaks."""
    plan, scenario = job.plan, job.scenario
    if plan.pp == 1:  # without a pipeline the schedule means nothing, so it cannot be wrong
        plan = plan.model_copy(update={"schedule": get_framework(framework).schedule})
    training = scenario.training.model_copy(update={"framework": framework})
    check_plan(Facts(scenario.model, scenario.cluster, training, columns_of([plan])))


def import_plan(text: str, format: str | None, options: ImportOptions) -> ImportedScenario:
    """The scenario that the text and the options describe; InputError names what is missing.

    Without a format, the one that the text is in.
    """
    name = FORMAT_ALIASES.get(format, format) if format else recognise(text)
    known = REGISTRY.get(name)
    if known is None or known.import_ is None:
        raise InputError("--format", name, did_you_mean(name, IMPORT_FORMATS))
    options = replace(options, framework=FRAMEWORK_ALIASES.get(options.framework or "", options.framework))
    draft = known.import_(text, options)
    framework = draft.framework or (
        known.framework if isinstance(known.framework, str) else options.framework
    )
    if options.framework not in (None, framework):
        raise InputError("--framework", options.framework, f"must be {framework}: the file belongs to it")
    if framework is None:
        raise missing("--framework", "what will train it, for example torchtitan or megatron-core")
    return assemble(draft, options, framework)


DEVICES = re.compile(r"\s*([0-9][0-9,_]*)\s*(?:x|×|\*)?\s*([A-Za-z].*?)\s*")
MAX_DEVICE_DIGITS = 12
HUGGING_FACE = "huggingface"
ASSUMED_FRAMEWORK = "megatron-core"
ASSUMABLE = ("seq_len", "global_batch_size", "framework")
MAX_ASSUMED_SEQ_LEN = 8192
ASSUMED_TOKENS = 4 * 2**20
"""Per step: usual for pretraining (Llama 3, arXiv 2407.21783, section 3.4)."""


@dataclass(frozen=True)
class Start:
    imported: ImportedScenario
    assumed: dict[str, int | str]
    """Fields of ImportOptions that neither the file nor the user stated."""


def parse_devices(text: str, field: str) -> tuple[int, str]:
    """ "64 x H100 SXM" as a count and a name."""
    match = DEVICES.fullmatch(text)
    digits = re.sub(r"[,_]", "", match[1]) if match else ""
    if match is None or len(digits) > MAX_DEVICE_DIGITS or not int(digits):
        raise InputError(field, text, 'allowed: a number and a device, for example "64 x H100"')
    return int(digits), match[2]


def is_scenario(text: str) -> bool:
    """Whether the text is a whole scenario, rather than a model or a tool's configuration."""
    return '"model"' in text and ('"training"' in text or '"cluster"' in text)


def start_scenario(text: str, format: str | None, stated: ImportOptions) -> Start:
    """From any configuration that `import_plan` reads; a config.json says nothing about training."""
    name = format or recognise(text)
    if name != HUGGING_FACE:
        return Start(import_plan(text, name, stated), {})
    seq_len, count = stated.seq_len or _usual_seq_len(text), stated.num_devices or 1
    whole = replace(
        stated,
        seq_len=seq_len,
        global_batch_size=stated.global_batch_size or max(ASSUMED_TOKENS // seq_len // count, 1) * count,
        framework=stated.framework or ASSUMED_FRAMEWORK,
    )
    assumed = {key: getattr(whole, key) for key in ASSUMABLE if getattr(stated, key) is None}
    return Start(import_plan(text, name, whole), assumed)


def _usual_seq_len(text: str) -> int:
    config = parse_json(text)
    inner = config.get("text_config")
    longest = {**config, **(inner if isinstance(inner, dict) else {})}.get("max_position_embeddings")
    usable = longest if isinstance(longest, int) and longest > 0 else MAX_ASSUMED_SEQ_LEN
    return min(usable, MAX_ASSUMED_SEQ_LEN)


@cache
def preset_models() -> dict[str, JsonObject]:
    """Well-known models by name, each as a config.json."""
    text = kb_seed.folder("models").joinpath("presets.toml").read_text(encoding="utf-8")
    return {name: {**config, "name": name} for name, config in tomllib.loads(text).items()}
