"""Combines what a file states and the user's options into a scenario, or names what is missing."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, get_args

from pydantic import Field, JsonValue
from pydantic_core import to_jsonable_python

from tools.errors import InputError
from tools.frameworks.python_config import FindModule, no_module
from tools.frameworks.reading import SettingsReader, UnusedSetting
from tools.frameworks.words import node_note, parse_devices
from tools.physics.sizes import ParameterCount, count_parameters
from tools.scenario import StatedPlan, parse_scenario
from tools.scenario.fields import NOTHING, JsonObject, build, usable_count
from tools.scenario.huggingface import canonical_model
from tools.scenario.levers import PLAN_SETTINGS, framework_levers
from tools.scenario.spec import CARRIED_FIELDS, FULL_SHARDING, LoraSpec, Precision, PrecisionScope

FieldValue = bool | int | float | str | list[int] | list[str] | list[JsonValue] | None
ModelFields = dict[str, FieldValue]
"""A model as a file describes it, by the names of a config.json; None is not stated."""
TrainingFields = dict[str, bool | float | str | tuple[str, ...] | LoraSpec | PrecisionScope | None]
"""Fields of the training part beside the batch: adapters, offload, switches."""

NEEDED_OF_MODEL = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
SHAPE = ("num_hidden_layers", "hidden_size")
"""What tells two models apart, by any file that describes one."""
SetValues = Mapping[str, JsonValue]
"""What `--set` takes, by name."""
Count = Annotated[int, Field(ge=1, le=10**9)]
LEFT_OUT_IF_OPEN = ("etp", "schedule", *CARRIED_FIELDS)
"""Plan fields that a file without a word about them does not mention."""


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """What the user states beside the file; it wins over the file.

    The options of `asap import` and the arguments of the MCP tool are these, with these descriptions.
    """

    model: Annotated[JsonObject | None, Field(description="a Hugging Face config.json")] = None
    device: Annotated[str | None, Field(description="a device of the catalogue, such as h100")] = None
    num_devices: Annotated[Count | None, Field(description="devices the job runs on")] = None
    devices_per_node: Annotated[
        Count | None, Field(description="devices per node (default: what is usual for the device)")
    ] = None
    num_slices: Annotated[
        Count, Field(description="TPU slices (or GPU nodes) of a MaxText job, if its file leaves them open")
    ] = 1
    seq_len: Annotated[Count | None, Field(description="tokens per sequence")] = None
    global_batch_size: Annotated[Count | None, Field(description="sequences per step")] = None
    micro_batch_size: Annotated[Count | None, Field(description="sequences that a device runs at once")] = (
        None
    )
    vocab_size: Annotated[
        Count | None, Field(description="entries of the vocabulary, if the file leaves them to a tokenizer")
    ] = None
    devices: Annotated[
        str | None, Field(description='instead of device and its counts: "64 x H100", "8 nodes of 8 H100s"')
    ] = None
    framework: Annotated[
        str | None, Field(description="the training framework, if the file belongs to none")
    ] = None
    precision: Annotated[str | None, Field(description=f"one of {', '.join(get_args(Precision))}")] = None
    overrides: tuple[tuple[str, JsonValue], ...] = ()
    """Dotted scenario fields and their values, applied last."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Values of variables that the file leaves open: TP for ${TP}."""
    find_module: FindModule = no_module
    """For a file in a checkout: the modules that it imports, the files that it names."""

    def __post_init__(self) -> None:
        """Device and counts of `devices`, which is None from here on."""
        if self.devices is None:
            return
        if self.device or self.num_devices or self.devices_per_node:
            raise InputError("devices", self.devices, "state either devices, or device and its counts")
        count, device, per_node = parse_devices(self.devices, "devices")
        found = {"device": device, "num_devices": count, "devices_per_node": per_node, "devices": None}
        for name, value in found.items():
            object.__setattr__(self, name, value)

    def setting(self, values: SetValues) -> "ImportOptions":
        """With what `--set` takes: a dotted name is a field of the scenario, a plain one a variable."""
        fields = tuple((name, value) for name, value in values.items() if "." in name)
        variables = {name: str(value) for name, value in values.items() if "." not in name}
        return replace(self, overrides=fields, variables=variables)

    def get_num_devices(self, why: str) -> int:
        if self.num_devices is None:
            raise missing("cluster.num_devices", why)
        return self.num_devices

    def divide_devices(self, degrees: int, why: str) -> int:
        """The devices that each combination of the file's degrees gets."""
        return divide_devices(self.get_num_devices(why), degrees)

    def get_num_layers(self, in_file: int | None = None) -> int:
        """Layers of the stated model or of the file's; most formats derive vpp from them."""
        stated = usable_count(canonical_model(self.model).get("num_hidden_layers")) if self.model else 0
        if not stated and in_file is None:
            raise missing("model", "a Hugging Face config.json (vpp follows from its number of layers)")
        return stated or in_file or 0

    def is_moe(self, in_file: ModelFields) -> bool:
        return bool((in_file if self.model is None else canonical_model(self.model)).get("num_experts"))

    @property
    def stated_micro_batch_size(self) -> int:
        """0: not stated."""
        return self.micro_batch_size or usable_count(dict(self.overrides).get("plan.micro_batch_size"))

    def get_micro_batch_size(self, in_file: int | None) -> int:
        size = self.stated_micro_batch_size or in_file
        if size is None:
            raise missing("plan.micro_batch_size", "sequences that a device runs at once")
        return size


def missing(path: str, why: str) -> InputError:
    return InputError(path, NOTHING, f"the file does not state it, so give it here: {why}")


def divide_devices(num_devices: int, degrees: int, what: str = "the file's degrees") -> int:
    if num_devices % degrees:
        raise InputError("cluster.num_devices", num_devices, f"must be a multiple of {what} ({degrees})")
    return num_devices // degrees


def read_levers(settings: SettingsReader, framework: str) -> TrainingFields:
    """The fields of `training` that the file states by the framework's own names; the closest lever wins."""
    fields: TrainingFields = {}
    for lever in sorted(framework_levers(framework), key=lambda lever: len(lever.writes)):
        # All are read, so that none is reported as unused.
        states = [settings.states(name, value) for name, value in lever.writes.items()]
        if lever.setting in PLAN_SETTINGS or not states:
            continue
        if all(states):
            fields[lever.setting] = lever.value
        elif lever.value is True and any(settings.states(name, False) for name in lever.writes):
            fields.setdefault(lever.setting, False)  # not what a recipe would have
    return fields


def stated_plan(
    degrees: tuple[int, int, int, int],
    stage: int,
    shard_ranks: int,
    *,
    ep: int = 1,
    vpp: int = 1,
    sequence_parallel: bool = False,
    **fields: int | str | tuple[str, ...] | None,
) -> StatedPlan:
    """The plan of a file with these tp, pp, cp and dp; InputError for a number that no plan can have."""
    is_sharded = stage > 0 and shard_ranks > 1  # one rank shards nothing
    if not is_sharded or stage < FULL_SHARDING:
        fields["reshard_after_forward"] = None  # whole weights are not gathered
    plan = {
        **dict(zip(("tp", "pp", "cp", "dp"), degrees, strict=True)),
        "zero_stage": stage if is_sharded else 0,
        "dp_shard": shard_ranks if is_sharded else 1,
        "ep": ep,
        "vpp": vpp,
        "sequence_parallel": sequence_parallel,
        **{
            name: value for name, value in fields.items() if value is not None or name not in LEFT_OUT_IF_OPEN
        },
    }
    return build(StatedPlan, plan, "plan.")


@dataclass(frozen=True, slots=True)
class Draft:
    """What a file states, in the vocabulary of a scenario; None is not stated."""

    plan: StatedPlan | None
    """None for a cold start."""
    precision: str
    seq_len: int | None = None
    global_batch_size: int | None = None
    model: ModelFields | JsonObject = field(default_factory=dict)
    has_class_defaults: bool = False
    """Fields that the file leaves out are the defaults of the model's class."""
    model_changes: ModelFields = field(default_factory=dict)
    """What the file changes of the model that it only names."""
    model_name: str = ""
    """What the file calls the model, if it does not describe it."""
    training: TrainingFields = field(default_factory=dict)
    framework: str | None = None
    """If the file says which of several engines runs it."""
    notes: tuple[str, ...] = ()
    unused: tuple[UnusedSetting, ...] = ()


@dataclass(frozen=True, slots=True)
class ImportedScenario:
    """A scenario that `asap predict` accepts, as JSON values, and what the user should know about it."""

    scenario: dict[str, JsonObject]
    parameters: ParameterCount
    notes: tuple[str, ...] = ()
    unused: tuple[UnusedSetting, ...] = ()
    left_out: tuple[str, ...] = ()
    """Parts of a multimodal model that are not planned."""


def assemble(draft: Draft, options: ImportOptions, framework: str) -> ImportedScenario:
    """Checks the result as `asap predict` would, or as `asap optimize` would if there is no plan."""
    if options.model is None:
        model = _described_model(draft, options)
    else:
        _refuse_other_model(options.model, draft)
        model = {**options.model, **to_jsonable_python(draft.model_changes)}
    if options.device is None:
        raise missing("cluster.device", "a name from 'asap hardware list'")
    plan = draft.plan
    degrees = plan.tp * plan.pp * plan.cp * plan.dp if plan else None
    num_devices = options.num_devices or degrees
    if num_devices is None:
        raise missing("cluster.num_devices", "how many devices the job runs on")
    if degrees not in (None, num_devices):
        rule = f"must be {degrees}, the product of the degrees in the file"
        raise InputError("cluster.num_devices", num_devices, rule)
    seq_len = options.seq_len or draft.seq_len
    if seq_len is None:
        raise missing("training.seq_len", "tokens per sequence")
    global_batch_size = options.global_batch_size or draft.global_batch_size
    if global_batch_size is None:
        raise missing("training.global_batch_size", "sequences per step")
    per_node = {"devices_per_node": options.devices_per_node} if options.devices_per_node else {}
    switches: JsonObject = {
        name: value.model_dump(mode="json", exclude_unset=True)
        if isinstance(value, LoraSpec | PrecisionScope)
        else (list(value) if isinstance(value, tuple) else value)
        for name, value in draft.training.items()
    }
    scenario: dict[str, JsonObject] = {
        "model": model,
        "cluster": {"device": options.device, "num_devices": num_devices, **per_node},
        "training": {
            "seq_len": seq_len,
            "global_batch_size": global_batch_size,
            "precision": options.precision or draft.precision,
            **switches,
            "framework": framework,
        },
    }
    if plan:
        size = options.get_micro_batch_size(plan.micro_batch_size)
        scenario["plan"] = {**plan.model_dump(exclude_unset=True), "micro_batch_size": size}
    for name, value in options.overrides:
        part, _, key = name.partition(".")
        if part not in scenario or not key:
            rule = "FIELD must be model.NAME, cluster.NAME, training.NAME or plan.NAME"
            raise InputError("overrides", name, rule)
        scenario[part] = {**scenario[part], key: value}
    parsed = parse_scenario(scenario, need_plan="plan" in scenario)
    # As understood, not as written: class defaults filled in, and nothing that JSON cannot say (Infinity).
    always = {name: getattr(parsed.model, name) for name in ("gated_mlp", "tie_word_embeddings")}
    scenario["model"] = {**parsed.model.model_dump(mode="json", exclude_defaults=True), **always}
    parameters, left_out, cluster = count_parameters(parsed.model), parsed.model.left_out, parsed.cluster
    odd = node_note(cluster.num_devices, cluster.devices_per_node, cluster.device)
    notes = (*draft.notes, *([odd] if odd else ()))
    return ImportedScenario(scenario, parameters, notes, draft.unused, left_out)


def _refuse_other_model(stated: JsonObject, draft: Draft) -> None:
    """The plan of one model is not priced with another's size."""
    given, in_file = canonical_model(stated), draft.model
    for name in SHAPE if all(in_file.get(name) for name in SHAPE) else ():
        if given.get(name) and given[name] != in_file[name]:
            rule = f"the file describes a model with {in_file[name]}: give that model's config.json, or none"
            raise InputError("model", f"{name} {given[name]}", rule)


def _described_model(draft: Draft, options: ImportOptions) -> JsonObject:
    if not draft.model:
        hint = f"the config.json of {draft.model_name}" if draft.model_name else "a Hugging Face config.json"
        raise missing("model", hint)
    stated = {"vocab_size": options.vocab_size} if options.vocab_size else {}
    model: JsonObject = to_jsonable_python({**draft.model, **stated})
    if draft.has_class_defaults:
        return model
    by_pattern = ("num_hidden_layers",) if "hybrid_override_pattern" in model else ()
    absent = [name for name in NEEDED_OF_MODEL if name not in by_pattern and model.get(name) is None]
    if absent == ["vocab_size"]:
        raise missing("model.vocab_size", "entries of the vocabulary, which the file leaves to the tokenizer")
    if absent:
        raise missing("model", f"a Hugging Face config.json (the file has no {', '.join(absent)})")
    return {name: value for name, value in model.items() if value is not None}
