"""The tables of export and import formats, and the framework whose rules a plan must obey for each.

A plan may be legal for the framework it was made for and not for the one it is exported to.
"""

from collections.abc import Callable
from typing import NamedTuple

from tools.errors import InputError
from tools.frameworks.accelerate import accelerate_framework, export_accelerate
from tools.frameworks.assemble import Draft, Given, Imported, assemble, missing
from tools.frameworks.deepspeed import export_deepspeed, read_deepspeed
from tools.frameworks.maxtext import export_maxtext, read_maxtext
from tools.frameworks.megatron import export_megatron, read_megatron
from tools.frameworks.nemo import export_nemo
from tools.frameworks.reading import parse_json
from tools.frameworks.torchtitan import export_torchtitan, read_torchtitan
from tools.frameworks.writing import Export, Job
from tools.scenario import Facts, Plan, Scenario, check_plan, columns_of, did_you_mean, get_framework


def check_for_framework(scenario: Scenario, plan: Plan, framework: str) -> None:
    """Raises InputError for the first rule of the target framework that the plan breaks."""
    usual = get_framework(framework).schedule
    # One stage has no schedule: what the plan says about it cannot be wrong.
    looked_at = plan if plan.pp > 1 else plan.model_copy(update={"schedule": usual})
    training = scenario.training.model_copy(update={"framework": framework})
    check_plan(Facts(scenario.model, scenario.cluster, training, columns_of([looked_at])))


class _Format(NamedTuple):
    framework: str | Callable[[Job], str]
    write: Callable[[Job], Export]


_TABLE = {
    "torchtitan": _Format("torchtitan", export_torchtitan),
    "megatron": _Format("megatron-core", export_megatron),
    "nemo": _Format("megatron-core", export_nemo),
    "deepspeed": _Format("deepspeed", export_deepspeed),
    "maxtext": _Format("maxtext", export_maxtext),
    "accelerate": _Format(accelerate_framework, export_accelerate),
}
FORMATS = tuple(_TABLE)


def export_plan(scenario: Scenario, format: str) -> Export:
    """The scenario's plan in the named format; raises InputError where the format cannot express it."""
    if format not in _TABLE:
        raise InputError("--format", format, did_you_mean(format, FORMATS))
    if scenario.plan is None:
        raise InputError("plan", None, "an export needs a plan; 'asap optimize' proposes one")
    job, chosen = Job(scenario, scenario.plan), _TABLE[format]
    framework = chosen.framework if isinstance(chosen.framework, str) else chosen.framework(job)
    check_for_framework(scenario, scenario.plan, framework)
    return chosen.write(job)


_PRECISIONS = {"bfloat16": "bf16", "float16": "fp16"}
_USUAL = "bf16"


def read_huggingface(text: str, given: Given) -> Draft:
    """A draft without a plan: `asap optimize` starts cold from it."""
    model = parse_json(text)
    stored = model.get("dtype", model.get("torch_dtype"))
    precision = _PRECISIONS.get(str(stored), _USUAL)
    told = given.precision or str(stored) in _PRECISIONS
    notes = [] if told else [f"precision {_USUAL} is assumed; --precision states another"]
    return Draft(plan=None, training={"precision": precision}, model=model, notes=notes)


class _Format_formats(NamedTuple):
    framework: str | None
    """None: the file belongs to no training framework."""
    read: Callable[[str, Given], Draft]


_TABLE_FORMATS = {
    "torchtitan": _Format_formats("torchtitan", read_torchtitan),
    "megatron": _Format_formats("megatron-core", read_megatron),
    "deepspeed": _Format_formats("deepspeed", read_deepspeed),
    "maxtext": _Format_formats("maxtext", read_maxtext),
    "huggingface": _Format_formats(None, read_huggingface),
}
IMPORT_FORMATS = tuple(_TABLE_FORMATS)


def import_plan(text: str, format: str, given: Given) -> Imported:
    """The scenario that the text and what is given beside it describe; InputError names what is missing."""
    if format not in _TABLE_FORMATS:
        raise InputError("--format", format, did_you_mean(format, IMPORT_FORMATS))
    chosen = _TABLE_FORMATS[format]
    if chosen.framework and given.framework not in (None, chosen.framework):
        raise InputError("--framework", given.framework, f"the file is {chosen.framework}'s")
    draft = chosen.read(text, given)
    framework = chosen.framework or given.framework
    if framework is None:
        raise missing("--framework", "what will train it, for instance torchtitan or megatron-core")
    return assemble(draft, given, framework)
