"""Combines what a file states and the user's options into a scenario, or names the option that is missing."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from pydantic import JsonValue

from tools.cost.sizes import ParameterCount, count_parameters
from tools.errors import InputError
from tools.frameworks.reading import JsonObject, SettingsReader
from tools.scenario import StatedPlan, parse_scenario
from tools.scenario.fields import NOTHING, build, usable_count
from tools.scenario.huggingface import canonical_model
from tools.scenario.levers import PLAN_SETTINGS, framework_levers

NEEDED_OF_MODEL = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """What the user states beside the file; it wins over the file."""

    model: JsonObject | None = None
    device: str | None = None
    num_devices: int | None = None
    devices_per_node: int | None = None
    num_slices: int = 1
    seq_len: int | None = None
    global_batch_size: int | None = None
    micro_batch_size: int | None = None
    precision: str | None = None
    vocab_size: int | None = None
    framework: str | None = None
    """For a file that belongs to no framework."""
    overrides: tuple[tuple[str, JsonValue], ...] = ()
    """Dotted scenario fields and their values, applied last."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Values of variables that the file leaves open: TP for ${TP}."""

    def get_num_devices(self, why: str) -> int:
        if self.num_devices is None:
            raise missing("--num-devices", why)
        return self.num_devices

    def divide_devices(self, degrees: int, why: str) -> int:
        """The devices that each combination of the file's degrees gets."""
        num_devices = self.get_num_devices(why)
        if num_devices % degrees:
            allowed = f"must be a multiple of the file's degrees ({degrees})"
            raise InputError("--num-devices", num_devices, allowed)
        return num_devices // degrees

    def get_num_layers(self, in_file: int | None = None) -> int:
        """Layers of the model, from --model or from the file; most formats derive vpp from them."""
        stated = usable_count(self._canonical_model().get("num_hidden_layers"))
        if not stated and in_file is None:
            raise missing("--model", "a Hugging Face config.json (vpp follows from its number of layers)")
        return stated or in_file or 0

    def is_moe(self, model_in_file: Mapping[str, JsonValue]) -> bool:
        model = self._canonical_model() if self.model is not None else model_in_file
        return bool(model.get("num_experts"))

    def get_micro_batch_size(self, in_file: int | None) -> int:
        size = self.micro_batch_size or usable_count(dict(self.overrides).get("plan.micro_batch_size"))
        if not size and in_file is None:
            raise missing("--micro-batch-size", "sequences that a device runs at once")
        return size or in_file or 0

    def _canonical_model(self) -> Mapping[str, JsonValue]:
        return canonical_model(self.model) if self.model is not None else {}


def missing(option: str, why: str) -> InputError:
    return InputError(option, NOTHING, f"the file does not state it, so give it here: {why}")


def read_levers(settings: SettingsReader, framework: str) -> JsonObject:
    """The fields of `training` that the file states by the framework's own names; the closest lever wins."""
    fields: JsonObject = {}
    for lever in sorted(framework_levers(framework), key=lambda lever: len(lever.writes)):
        # All are read, so that none is reported as unused.
        states = [settings.states(name, value) for name, value in lever.writes.items()]
        if lever.setting not in PLAN_SETTINGS and states and all(states):
            fields[lever.setting] = lever.value
    return fields


class Degrees(NamedTuple):
    """The parallel degrees whose product is the number of devices."""

    tp: int
    pp: int
    cp: int
    dp: int

    @property
    def num_devices(self) -> int:
        return self.tp * self.pp * self.cp * self.dp


class Batch(NamedTuple):
    micro_batch_size: int
    global_batch_size: int


class Sharding(NamedTuple):
    zero_stage: int = 0
    dp_shard: int = 1

    @classmethod
    def over(cls, stage: int, ranks: int) -> "Sharding":
        """A group of one rank shards nothing."""
        return cls(stage, ranks) if stage and ranks > 1 else cls()


def stated_plan(
    degrees: Degrees, sharding: Sharding, **fields: int | bool | str | tuple[str, ...] | None
) -> StatedPlan:
    """The plan of a file; a number that no plan can have is an InputError."""
    return build(StatedPlan, {**degrees._asdict(), **sharding._asdict(), **fields}, "plan.")


@dataclass(frozen=True, slots=True)
class Draft:
    """What a file states, in the vocabulary of a scenario; None is not stated."""

    plan: StatedPlan | None
    """None for a cold start."""
    precision: str
    seq_len: int | None = None
    global_batch_size: int | None = None
    num_devices: int | None = None
    model: JsonObject = field(default_factory=dict)
    """By Hugging Face names."""
    has_class_defaults: bool = False
    """Fields that the file leaves out are the defaults of the model's class."""
    model_changes: JsonObject = field(default_factory=dict)
    """What the file changes of the model that it only names."""
    model_name: str = ""
    """What the file calls the model, if it does not describe it."""
    training: JsonObject = field(default_factory=dict)
    """Further fields of the training part: adapters, offload."""
    framework: str | None = None
    """If the file says which of several engines runs it."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ImportedScenario:
    """A scenario that `asap predict` accepts, as JSON values, and what the user should know about it."""

    scenario: dict[str, JsonObject]
    notes: tuple[str, ...]
    parameters: ParameterCount
    left_out: tuple[str, ...] = ()
    """Parts of a multimodal model that are not planned."""


def assemble(draft: Draft, options: ImportOptions, framework: str) -> ImportedScenario:
    """Checks the result as `asap predict` would, or as `asap optimize` would if there is no plan."""
    if options.vocab_size and draft.model:
        draft = replace(draft, model={**draft.model, "vocab_size": options.vocab_size})
    scenario: dict[str, JsonObject] = {
        "model": _model(draft) if options.model is None else {**options.model, **draft.model_changes},
        "cluster": _cluster(draft, options),
        "training": {**_training(draft, options), **draft.training, "framework": framework},
    }
    if draft.plan is not None:
        size = options.get_micro_batch_size(draft.plan.micro_batch_size)
        scenario["plan"] = {**draft.plan.model_dump(exclude_unset=True), "micro_batch_size": size}
    for name, value in options.overrides:
        part, _, key = name.partition(".")
        if part not in scenario or not key:
            allowed = "FIELD must be model.NAME, cluster.NAME, training.NAME or plan.NAME"
            raise InputError("--set", name, allowed)
        scenario[part] = {**scenario[part], key: value}
    parsed = parse_scenario(scenario, need_plan="plan" in scenario)
    # As understood, not as written: class defaults filled in, and nothing that JSON cannot say (Infinity).
    always = {name: getattr(parsed.model, name) for name in ("gated_mlp", "tie_word_embeddings")}
    scenario["model"] = {**parsed.model.model_dump(mode="json", exclude_defaults=True), **always}
    return ImportedScenario(scenario, draft.notes, count_parameters(parsed.model), parsed.model.left_out)


def _model(draft: Draft) -> JsonObject:
    if not draft.model:
        hint = f"the config.json of {draft.model_name}" if draft.model_name else "a Hugging Face config.json"
        raise missing("--model", hint)
    if draft.has_class_defaults:
        return draft.model
    by_pattern = {"num_hidden_layers"} if "hybrid_override_pattern" in draft.model else set()
    needed = [name for name in NEEDED_OF_MODEL if name not in by_pattern]
    open_fields = [name for name in needed if draft.model.get(name) is None]
    if open_fields == ["vocab_size"]:
        raise missing("--vocab-size", "entries of the vocabulary, which the file leaves to the tokenizer")
    if open_fields:
        raise missing("--model", f"a Hugging Face config.json (the file has no {', '.join(open_fields)})")
    return {name: value for name, value in draft.model.items() if value is not None}


def _cluster(draft: Draft, options: ImportOptions) -> JsonObject:
    if options.device is None:
        raise missing("--device", "a name from 'asap hardware list'")
    num_devices = options.num_devices or draft.num_devices
    if num_devices is None:
        raise missing("--num-devices", "how many devices the job runs on")
    if draft.num_devices not in (None, num_devices):
        allowed = f"must be {draft.num_devices}, the product of the degrees in the file"
        raise InputError("--num-devices", num_devices, allowed)
    node = {"devices_per_node": options.devices_per_node} if options.devices_per_node else {}
    return {"device": options.device, "num_devices": num_devices, **node}


def _training(draft: Draft, options: ImportOptions) -> JsonObject:
    seq_len = options.seq_len or draft.seq_len
    if seq_len is None:
        raise missing("--seq-len", "tokens per sequence")
    global_batch_size = options.global_batch_size or draft.global_batch_size
    if global_batch_size is None:
        raise missing("--global-batch-size", "sequences per step")
    precision = options.precision or draft.precision
    return {"seq_len": seq_len, "global_batch_size": global_batch_size, "precision": precision}
