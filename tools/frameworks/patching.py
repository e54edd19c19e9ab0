"""Changes a user's own configuration from today's plan to a proposal's, and nothing else.

The exporters say what differs between the two plans by the framework's own names. The changed text is read
back: it must state the proposal's plan, and every other setting must be as it was.
"""

import re
from dataclasses import dataclass, replace
from difflib import unified_diff

from tools.errors import InputError
from tools.frameworks.editing import Document, is_same
from tools.frameworks.exporting import ExportJob, SettingsTree, stated_settings
from tools.frameworks.format import Format
from tools.frameworks.formats import FORMAT_ALIASES, REGISTRY, import_plan, recognise
from tools.frameworks.importing import ImportOptions
from tools.frameworks.trainer import DEEPSPEED
from tools.scenario import Scenario, did_you_mean, parse_scenario
from tools.scenario.levers import Lever, SettingValue, offered_levers
from tools.scenario.recipes import run_training
from tools.scenario.spec import FULL_SHARDING

LINE = re.compile(r"[^\n]*\n|[^\n]+")
OFF = (None, "none", False)
"""A switch that is not stated is off."""
OPEN_VALUES = (-1, "auto", None, "None")
"""Values that leave a setting to what runs the file."""
OPTIONS = {
    "plan.micro_batch_size": "micro_batch_size",
    "deepspeed: train_micro_batch_size_per_gpu": "micro_batch_size",
    "training.seq_len": "seq_len",
    "training.global_batch_size": "global_batch_size",
    "training.precision": "precision",
    "training.framework": "framework",
}
"""What a file may leave to an option of its import, by the path of an error."""
PLAN_IS_MISSING = "a patch changes a plan that the file states; 'asap export' writes a new file"


@dataclass(frozen=True, slots=True)
class Patch:
    text: str
    """The file after the change."""
    diff: str
    notes: tuple[str, ...] = ()
    """What another file, or the program, must state."""


@dataclass(frozen=True, slots=True)
class _Job:
    target: Format
    file: Document
    options: ImportOptions
    """What the file leaves open, so that it is read as the report's scenario."""
    today: Scenario
    expected: Scenario
    """What the changed file must say."""

    def wrong(self, file: Document, edited: set[str]) -> InputError | None:
        """Why a text is not the file with the new plan; None if it is."""
        before, after = self.file.values(), file.values()
        for name in sorted(before.keys() | after.keys()):
            if name not in edited and before.get(name) != after.get(name):
                rule = f"would become {after.get(name)!r} too: it takes the same variable; change it by hand"
                return InputError(self._path(name), before.get(name), rule)
        plan, options = self.expected.plan, self.options
        if options.micro_batch_size and plan:
            options = replace(options, micro_batch_size=plan.micro_batch_size)
        try:
            read = _read(file.text, self.target, options)
        except InputError as error:
            return error
        said = _meaning(read, self.target)
        for field, value in _meaning(self.expected, self.target).items():
            if said[field] != value and not (said[field] in OFF and value in OFF):
                rule = f"this file has no setting that makes it {value!r}; change it by hand"
                return InputError(field, said[field], rule)
        return None

    def _path(self, name: str) -> str:
        place = next((each for each in self.file.places() if self.file.named(each.name) == name), None)
        return f"line {self.file.line(place.start)}: {name}" if place else name

    def apply(
        self, changes: SettingsTree, removed: list[str], old: SettingsTree, whole: SettingsTree
    ) -> Document:
        """The text with the changes; of what it leaves open and of `whole` only what it cannot do without."""
        stated, named = self.file.values(), self.file.named
        needed, optional = list[str](), list[str]()
        values = whole | changes
        for name, value in values.items():
            current, is_stated = stated.get(named(name)), named(name) in stated
            if not (is_stated and is_same(current, value)) and (is_stated or value is not None):
                is_open = current in OPEN_VALUES if is_stated else name in old
                (optional if is_open or name not in changes else needed).append(name)

        def attempt(chosen: list[str]) -> tuple[Document, InputError | None]:
            file = self.file
            for name in removed:
                file = file.remove(named(name))
            for name in chosen:
                if named(name) in file.values():
                    file = file.change(named(name), values[name])
                else:
                    section = name.rpartition(".")[0]
                    near = sorted(values, key=lambda other: other.rpartition(".")[0] != section)
                    file = file.add(name, values[name], near)
            return file, self.wrong(file, {named(name) for name in (*chosen, *removed)})

        chosen = needed
        file, wrong = attempt(chosen)
        if wrong and optional:
            chosen = [*needed, *optional]
            file, wrong = attempt(chosen)
            for name in optional if not wrong else ():
                fewer = [other for other in chosen if other != name]
                without, missed = attempt(fewer)
                if missed is None:
                    chosen, file = fewer, without
        if wrong:
            raise wrong
        return file


def patch_plan(
    text: str,
    file_name: str,
    today: Scenario,
    proposed: Scenario,
    options: ImportOptions,
    format: str | None = None,
) -> Patch:
    """The file with the proposed plan; InputError for a file of another plan, or a field that is computed."""
    name = FORMAT_ALIASES.get(format, format) if format else recognise(text)
    if name not in REGISTRY:
        raise InputError("format", name, did_you_mean(name, REGISTRY))
    target = REGISTRY[name]
    plan = proposed.plan
    if today.plan is None or plan is None:
        raise InputError("plan", None, PLAN_IS_MISSING)
    options, read = _read_as(text, target, today, options)
    file = Document.of(text, target.is_flat, options.variables)
    old_levers, new_levers, settings, notes = _levers(target, read, proposed)
    training = read.training.model_copy(update=settings)
    expected = read.model_copy(update={"plan": plan, "training": training})
    old_job, new_job = ExportJob(read, today.plan, old_levers), ExportJob(expected, plan, new_levers)
    names = frozenset(file.values())
    new = target.settings(new_job, names)
    try:
        old = target.settings(old_job, names)
    except InputError:  # a plan that no exporter writes may run nevertheless
        old = {}
    removed = [each for each in old if each not in new]
    changes = {each: value for each, value in new.items() if each not in old or old[each] != value}
    job = _Job(target, file, options, read, expected)
    try:
        changed = job.apply(changes, removed, old, {})
    except InputError as error:
        try:  # the file splits the axes in another way than the exporter: the whole plan is stated
            whole = target.settings(replace(new_job, levers=()), names)
            changed = job.apply(changes if old else {}, removed, old, whole)
        except InputError:
            raise error from None
    if target.file_name:
        notes += [note for note in target.write(new_job)[1] if note not in target.write(old_job)[1]]
    if options.micro_batch_size not in (None, plan.micro_batch_size):
        were, is_now = options.micro_batch_size, plan.micro_batch_size
        notes.append(f"plan.micro_batch_size is {is_now} (today {were}): the file leaves it to the program")
    if changed.text == text:
        notes.append("nothing in this file changes")
    before, after = (LINE.findall(each) for each in (text, changed.text))  # as git cuts lines
    lines = unified_diff(before, after, f"a/{file_name}", f"b/{file_name}")
    ended = (line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
    return Patch(changed.text, "".join(ended), (*notes, *changed.notes))


def _read(text: str, target: Format, options: ImportOptions) -> Scenario:
    return parse_scenario(import_plan(text, target.name, options).scenario, need_plan=False)


def _read_as(
    text: str, target: Format, today: Scenario, options: ImportOptions
) -> tuple[ImportOptions, Scenario]:
    """The options that make the file say what the report is about, and what it says with them."""
    cluster, training = today.cluster, today.training
    values = {name: getattr(training, name) for name in ("seq_len", "global_batch_size", "precision")}
    given = {"framework": training.framework, **values}
    given["micro_batch_size"] = today.plan.micro_batch_size if today.plan else None
    model = today.model.model_dump(mode="json", exclude_defaults=True)
    always = {name: getattr(today.model, name) for name in ("gated_mlp", "tie_word_embeddings")}
    options = replace(
        options,
        model={**model, **always},
        device=cluster.device,
        num_devices=cluster.num_devices,
        devices_per_node=cluster.devices_per_node,
    )
    while True:
        try:
            read = _read(text, target, options)
        except InputError as error:
            name = OPTIONS.get(error.path, "")
            if not name or getattr(options, name):
                raise
            # Who gives the program its micro-batch gives it the batch too.
            batch = {"global_batch_size": values["global_batch_size"]} if name == "micro_batch_size" else {}
            options = replace(options, **{name: given[name]}, **batch)
            continue
        if read.plan is None:
            raise InputError("text", "no plan", PLAN_IS_MISSING)
        other = {
            name: value
            for name, value in values.items()
            if getattr(read.training, name) != value and not getattr(options, name)
        }
        if not other:
            break
        options = replace(options, **other)
    said = _meaning(read, target)
    for field, value in _meaning(today, target).items():
        if field.startswith("plan.") and said[field] not in (value, None):
            raise InputError(
                f"FILE: {field}", said[field], f"the report is about another file: it has {value!r}"
            )
    return options, read


def _levers(
    target: Format, today: Scenario, proposed: Scenario
) -> tuple[tuple[Lever, ...], tuple[Lever, ...], dict[str, SettingValue | None], list[str]]:
    """Today's and the proposal's, what the changed file says of them, and what it cannot say."""
    stated = stated_settings(today)
    wanted = {**stated, **stated_settings(proposed)}
    changed = today.model_copy(update={"plan": proposed.plan})

    def suiting(scenario: Scenario, values: dict[str, SettingValue]) -> tuple[Lever, ...]:
        offered = offered_levers(scenario) if target.has_levers else ()
        running = scenario.model_copy(update={"training": run_training(scenario)})
        return tuple(
            each for each in offered if values.get(each.setting) == each.value and each.suits(running)
        )

    old, new = suiting(today, stated), suiting(changed, wanted)
    decided = {lever.setting for lever in new}
    new += tuple(lever for lever in old if lever.is_default and lever.setting not in decided)
    said: dict[str, SettingValue | None] = {
        lever.setting: lever.value if lever.writes else None for lever in new
    }
    notes = [
        f"{name} {value} is not written: the format or this plan does not offer it"
        for name, value in wanted.items()
        if name not in said and (name not in stated or stated[name] != value)
    ]
    gone = {lever.setting: None for lever in old if lever.setting not in said}
    notes += [f"{name} is removed: the plan does not allow it" for name in gone]
    return old, new, {**said, **gone}, notes


def _meaning(scenario: Scenario, target: Format) -> SettingsTree:
    """Plan and training with one spelling for what can be stated in two ways."""
    plan = scenario.plan
    assert plan is not None
    fields = plan.model_dump(mode="json")
    keeps = plan.reshard_after_forward is False
    stage, shard = plan.sharding_stage, plan.dp_shard if plan.sharding_stage else 1
    is_fsdp = "reshard_after_forward" in target.carries and scenario.training.framework != DEEPSPEED
    if is_fsdp and stage >= 2:
        stage, keeps = FULL_SHARDING, keeps or stage == 2  # FSDP without resharding is ZeRO 2
    if target.framework == DEEPSPEED and shard == plan.dp:
        shard = plan.data_ranks
    fields |= {
        "zero_stage": stage,
        "dp_shard": shard,
        "reshard_after_forward": stage == FULL_SHARDING and keeps,
    }
    if not scenario.model.is_moe:
        fields |= {"ep": 1, "etp": 1}
    fields |= {"schedule": plan.schedule if plan.pp > 1 else None}
    fields |= {"sequence_parallel": plan.sequence_parallel and plan.tp > 1}
    fields |= {name: getattr(plan, name) for name in ("recompute_layers", "recompute_modules")}
    training = scenario.training.model_dump(mode="json", exclude={"cuda_graph_scopes"})  # a lever's detail
    return {
        f"{part}.{name}": value
        for part, values in (("plan", fields), ("training", training))
        for name, value in values.items()
    }
