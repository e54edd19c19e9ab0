"""ASAP as a library: how to shard the training of a large language model.

    from asap import import_config, optimize

    job = import_config("config.json", "64 x H100", framework="torchtitan")
    for proposal in optimize(job.scenario).proposals:
        print(proposal.prediction.step_time_s, proposal.rationale)

Each function does what the command of its name does and returns, typed, what that prints with --json. A job
is a `Scenario`, the same as a dict, or the name of a JSON file. Wrong input raises InputError, which names
the field, what was given and what is allowed; a job that fits nowhere raises InfeasibleError.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from os import PathLike, fspath
from os.path import relpath
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

try:
    from service import __version__
    from service.cli.import_plan import read_model, read_text
    from service.cli.io import read_object
    from tools.errors import AsapError, DataError, InfeasibleError, InputError
    from tools.frameworks import Export, ImportOptions, Patch, export_plan, patch_plan
    from tools.frameworks.python_config import module_finder
    from tools.frameworks.reading import UnusedSetting
    from tools.frameworks.start import start_scenario
    from tools.hardware import get_device
    from tools.model.basis import ExplainedPrediction, explained
    from tools.model.calibration import Calibration
    from tools.model.predict import Prediction
    from tools.model.predict import predict as predict_many
    from tools.recommend.optimize import explain_against_best, workload_of
    from tools.recommend.report import ExplainedPlan, PlanFields, Proposal
    from tools.scenario import Plan, Scenario, parse_scenario
    from tools.trace.report import TraceReport, analyse_folder
except ModuleNotFoundError as error:
    room = (error.name or "").partition(".")[0]
    if room not in ("service", "graph", "tools", "kb_seed"):
        raise
    raise ImportError(f"a package {room!r} of yours hides the one of asap-sharding: rename yours") from error

if TYPE_CHECKING:
    from graph.report import Report

__all__ = [
    "AsapError", "Calibration", "DataError", "Export", "Imported", "InfeasibleError", "InputError", "Patch",
    "Plan", "Prediction", "Proposal", "Scenario", "TraceReport", "__version__", "diagnose", "explain",
    "export", "import_config", "optimize", "patch", "predict", "predict_many", "read_scenario",
]  # fmt: skip
File: TypeAlias = str | PathLike[str]
Job: TypeAlias = Scenario | Mapping[str, object] | File


@dataclass(frozen=True)
class Imported:
    """A configuration as a scenario, and what to know about it: `assumed` are values that neither the file
    nor the caller stated, `unused` the settings that were not read, each with the reason."""

    scenario: Scenario
    assumed: dict[str, int | str]
    notes: tuple[str, ...]
    unused: tuple[UnusedSetting, ...]


def read_scenario(job: Job) -> Scenario:
    """A scenario with every default filled in; its plan, today's configuration, may be absent."""
    if isinstance(job, Scenario):
        return job
    stated = job if isinstance(job, Mapping) else read_object(fspath(job), argument="job")
    return parse_scenario(stated, need_plan=False)


def import_config(
    file: File,
    devices: str,
    *,
    framework: str | None = None,
    seq_len: int | None = None,
    global_batch_size: int | None = None,
    precision: str | None = None,
    vocab_size: int | None = None,
    model: File | None = None,
) -> Imported:
    """A scenario from a model's config.json or from the configuration or script of today's job.

    `devices` is what it runs on: "64 x H100", "8 nodes of 8 H100s". The others state what the file leaves
    open; `model` is a config.json, if the file only names its model.
    """
    stated = ImportOptions(
        read_model(fspath(model) if model else None), devices=devices, seq_len=seq_len,
        global_batch_size=global_batch_size, vocab_size=vocab_size, framework=framework, precision=precision,
        find_module=module_finder(fspath(file)),
    )  # fmt: skip
    start = start_scenario(read_text(fspath(file), "file"), None, stated)
    made = start.imported
    return Imported(read_scenario(made.scenario), start.assumed, made.notes, made.unused)


def predict(job: Job, calibration: Calibration | None = None) -> ExplainedPrediction:
    """Step time with its 80% interval and its parts, memory, what limits the job's plan, and its evidence.

    `predict_many` takes a list of scenarios, thousands at a time. `calibration` holds what was learned from a
    cluster's own runs; without it, the constants of published runs hold.
    """
    scenario = read_scenario(job)
    if scenario.plan is None:
        raise InputError("plan", None, "a prediction needs a plan; optimize() proposes one")
    return explained(scenario, calibration)


def optimize(
    job: Job, calibration: Calibration | None = None, progress: Callable[[float], None] | None = None
) -> "Report":
    """The agents find what limits the job's plan, search every legal plan and propose the best three.

    Settings are those of the command: with ASAP_LLM_BASE_URL a language model reads `notes`, without one the
    expert rules do. Nothing is kept. `proposals[0].of(scenario)` is the scenario with the first plan.
    """
    from graph.request import Request
    from graph.session import Session
    from service.runtime import open_context
    from service.settings import load_settings

    scenario = read_scenario(job)
    workload_of(scenario)  # impossible constraints are refused before the agents begin
    settled = open_context(load_settings(), saves_cases=False)
    context = replace(settled, calibration=calibration, progress=progress)
    report = Session("optimize", context).run(Request(scenario)).report
    assert report is not None, "only a session that asks a person ends without a report"
    return report


def explain(job: Job, plan: PlanFields) -> ExplainedPlan:
    """Why the plan with these fields, the others as in the best one, is not proposed: {"tp": 1}."""
    return explain_against_best(workload_of(read_scenario(job)), plan)


def diagnose(folder: File, device: str | None = None) -> TraceReport:
    """Where the time of profiled steps goes, and why, from a folder of traces, one per rank.

    `device` names the accelerator, if the traces do not.
    """
    named = get_device(device) if device else None
    report = analyse_folder(Path(folder), device=named, limits=None).report
    if not report.ranks:
        first = report.unreadable[0]
        raise InputError("folder", fspath(folder), f"has no readable trace ({first.file}: {first.reason})")
    return report


def export(job: Job, format: str) -> Export:
    """The job's plan as a file that a training framework reads: "torchtitan", "megatron", "deepspeed" ..."""
    return export_plan(read_scenario(job), format)


def patch(file: File, today: Job, proposed: Job) -> Patch:
    """Today's configuration or script with the proposed plan, as the changed text and as a diff.

    `today` is what `import_config` read from the file, `proposed` a proposal's `of(today)`.
    """
    options = ImportOptions(find_module=module_finder(fspath(file)))
    text = read_text(fspath(file), "file")
    return patch_plan(text, relpath(file), read_scenario(today), read_scenario(proposed), options)
