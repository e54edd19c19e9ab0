"""The table of formats: which exporter writes it and whose rules the plan must obey first."""

from collections.abc import Callable
from typing import NamedTuple

from tools.errors import InputError
from tools.export.accelerate import accelerate_framework, export_accelerate
from tools.export.deepspeed import export_deepspeed
from tools.export.legality import check_for_framework
from tools.export.maxtext import export_maxtext
from tools.export.megatron import export_megatron
from tools.export.nemo import export_nemo
from tools.export.record import Export, Job
from tools.export.torchtitan import export_torchtitan
from tools.scenario import Scenario, did_you_mean


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
