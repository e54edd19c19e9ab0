"""The registry of formats, and the way in: a plan written in one, a scenario read from one.

A plan may be legal for the framework it was made for and not for the one it is exported to.
"""

from dataclasses import replace

from tools.errors import InputError
from tools.frameworks.accelerate import Accelerate
from tools.frameworks.automodel import Automodel
from tools.frameworks.axolotl import Axolotl
from tools.frameworks.deepspeed import DeepSpeed
from tools.frameworks.exporting import Export, ExportJob, chosen_levers
from tools.frameworks.format import OTHER_KINDS, OTHER_LAUNCHERS, Format, UnknownFile
from tools.frameworks.huggingface import HuggingFace
from tools.frameworks.importing import ImportedScenario, ImportOptions, assemble, missing
from tools.frameworks.levanter import Levanter
from tools.frameworks.llamafactory import LlamaFactory
from tools.frameworks.maxtext import MaxText
from tools.frameworks.megatron import Megatron
from tools.frameworks.nanotron import Nanotron
from tools.frameworks.nemo import Nemo
from tools.frameworks.neox import Neox
from tools.frameworks.primus import Primus
from tools.frameworks.torchtitan import Torchtitan
from tools.frameworks.trl import Trl
from tools.frameworks.veomni import VeOmni
from tools.scenario import PlanColumns, PlanFacts, Scenario, check_plan, did_you_mean, get_framework
from tools.scenario.frameworks import framework_name
from tools.scenario.recipes import TRAINING_SETTINGS, recipe_settings, run_training
from tools.scenario.spec import CARRIED_FIELDS, PLAN_ROLES

REGISTRY: dict[str, Format] = {
    format.name: format
    for format in (
        Torchtitan(), Megatron(), Nemo(), DeepSpeed(), MaxText(), Accelerate(), Nanotron(), Automodel(),
        Axolotl(), LlamaFactory(), Trl(), Neox(), Levanter(), Primus(), VeOmni(), HuggingFace(),
    )
}  # fmt: skip
FORMAT_ALIASES = {alias: name for name, format in REGISTRY.items() for alias in format.aliases}
NO_SETTINGS = ("software_date",)
"""Fields of `training` that say what runs, not how."""
EXPERT_SETTINGS = (
    "moe_dispatcher", "overlap_moe_communication", "moe_transport", "routing", "expert_imbalance",
    "capacity_factor",
)  # fmt: skip
"""Fields of `training` that mean nothing for a model without experts."""
EXPORT_FORMATS = tuple(name for name, format in REGISTRY.items() if format.file_name)
IMPORT_FORMATS = tuple(REGISTRY)


def get_export_format(format: str) -> Format:
    name = FORMAT_ALIASES.get(format, format)
    if name not in EXPORT_FORMATS:
        raise InputError("format", name, did_you_mean(name, EXPORT_FORMATS))
    return REGISTRY[name]


def export_plan(scenario: Scenario, format: str) -> Export:
    """The scenario's plan in the named format; raises InputError if the format cannot express it."""
    target = get_export_format(format)
    name = target.name
    if scenario.plan is None:
        raise InputError("plan", None, "an export needs a plan; 'asap optimize' proposes one")
    job = ExportJob(scenario, scenario.plan)
    if framework := target.framework_of(job):
        plan = scenario.plan
        if plan.pp == 1:  # without a pipeline the schedule means nothing, so it cannot be wrong
            plan = plan.model_copy(update={"schedule": get_framework(framework).schedule})
        training = scenario.training.model_copy(update={"framework": framework})
        check_plan(PlanFacts(scenario.model, scenario.cluster, training, PlanColumns.of([plan])))
        if target.has_levers:
            job = replace(job, levers=chosen_levers(scenario, framework))
    job = replace(job, scenario=_as_priced(scenario, target, framework))
    for field in CARRIED_FIELDS:
        value = getattr(job.plan, field)
        if value is not None and value is not True and field not in target.carries:
            raise job.refuse(field, f"{name} has no setting for {PLAN_ROLES[field].decides}; leave it out")
    text, notes = target.write(job)
    return Export(name, target.file_name, text, target.judged_by, (*notes, *_left_out(job, target)))


def _as_priced(scenario: Scenario, target: Format, framework: str | None) -> Scenario:
    """With what a published recipe sets and the format says: what runs is what is priced."""
    t = scenario.training.model_copy(update={"framework": framework or scenario.training.framework})
    run = run_training(scenario.model_copy(update={"training": t}))
    found = {name: getattr(run, name) for name in TRAINING_SETTINGS if getattr(t, name) is None}
    changed = {name: value for name, value in found.items() if value not in (None, False, "none", "fp32")}
    return scenario.model_copy(update={"training": scenario.training.model_copy(update=changed)})


def _left_out(job: ExportJob, target: Format) -> tuple[str, ...]:
    """A note for every setting that the scenario states, the file does not, and the framework does not do by
    itself."""
    training, model = job.scenario.training, job.scenario.model
    said = {lever.setting for lever in job.levers} | {*target.says, *NO_SETTINGS}
    if not model.is_moe:
        said |= {*EXPERT_SETTINGS}
    framework = target.framework_of(job) or training.framework
    usual = recipe_settings(framework, model, "", training.precision).settings
    return tuple(
        f"{name} ({words}) is left out: {target.name} does not offer it for this plan, release and device"
        for name, words in training.options().items()
        if name not in said
        and getattr(training, name) not in (False, "none", "natural", getattr(usual, name, False))
    )


def has_own_format(framework: str) -> bool:
    """Whether a configuration of its own decides the whole plan; plain FSDP is a program's own code."""
    format = REGISTRY.get(FORMAT_ALIASES.get(framework, framework))
    return format is not None and format.framework == framework


def import_plan(text: str, format: str | None, options: ImportOptions) -> ImportedScenario:
    """The scenario that the text and the options describe; InputError names what is missing.

    Without a format, the one that the text is in.
    """
    name = FORMAT_ALIASES.get(format, format) if format else recognise(text)
    if name not in REGISTRY:
        raise InputError("format", name, did_you_mean(name, IMPORT_FORMATS))
    options = replace(options, framework=framework_name(options.framework) if options.framework else None)
    draft = REGISTRY[name].read(text, options)
    # A model alone, without a plan, belongs to no framework.
    framework = draft.framework or (REGISTRY[name].framework if draft.plan else None) or options.framework
    if options.framework not in (None, framework):
        rule = f"must be {framework}: the file belongs to it"
        raise InputError("training.framework", options.framework, rule)
    if framework is None:
        raise missing("training.framework", "what will train it, for example torchtitan or megatron-core")
    return assemble(draft, options, framework)


def recognise(text: str) -> str:
    """The name of the format; InputError says what the file is instead, or that it is not known."""
    file = UnknownFile.of(text)
    if file.kind != "TOML" and (other := next(filter(file.has_any, OTHER_KINDS), None)):
        raise InputError("text", OTHER_KINDS[other], "not a configuration of a training run or a model")
    started = [what for mark, what in OTHER_LAUNCHERS.items() if file.kind == "script" and mark in text]
    if started:
        raise InputError("text", f"a script of {started[0]}", "its options are not read")
    best = max(REGISTRY.values(), key=lambda format: format.certainty(file))
    if not best.certainty(file):
        raise InputError("text", file.summary, "the format is not recognised; name it")
    return best.name
