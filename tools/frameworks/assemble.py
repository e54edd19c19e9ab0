"""Combines what a file states and what is given beside it into a scenario, or names the option that is
missing.
"""

from dataclasses import dataclass, field
from typing import Any

from tools.errors import InputError
from tools.scenario import parse_scenario
from tools.scenario.huggingface import canonical_model
from tools.scenario.spec import NOTHING


@dataclass(frozen=True, slots=True)
class Given:
    """What the user states beside the file; it wins over the file."""

    model: dict[str, Any] | None = None
    device: str | None = None
    num_devices: int | None = None
    devices_per_node: int | None = None
    num_slices: int = 1
    seq_len: int | None = None
    global_batch_size: int | None = None
    micro_batch_size: int | None = None
    precision: str | None = None
    framework: str | None = None
    """Of a file that belongs to none."""
    replaced: tuple[tuple[str, Any], ...] = ()
    """Dotted scenario fields and the values to put there, last of all."""


@dataclass(slots=True)
class Draft:
    """What a file says, in the words of a scenario. `model` holds Hugging Face names."""

    plan: dict[str, Any] | None
    """None where the file says nothing of one: a cold start."""
    training: dict[str, Any]
    model: dict[str, Any] = field(default_factory=dict)
    num_devices: int | None = None
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Imported:
    """A scenario that `asap predict` accepts, as JSON values, and what the user should know about it."""

    scenario: dict[str, Any]
    notes: tuple[str, ...]


def missing(option: str, why: str) -> InputError:
    return InputError(option, NOTHING, f"the file does not say it, so give it here: {why}")


def get_num_devices(given: Given, why: str) -> int:
    if given.num_devices is None:
        raise missing("--num-devices", why)
    return given.num_devices


def divide_devices(num_devices: int, degrees: int) -> int:
    """The devices that each combination of the file's degrees gets."""
    if num_devices % degrees:
        allowed = f"must be a multiple of the file's degrees ({degrees})"
        raise InputError("--num-devices", num_devices, allowed)
    return num_devices // degrees


def get_num_layers(given: Given, in_file: int | None = None) -> int:
    """Layers of the model, from the file or from --model; vpp is told by them in most formats."""
    layers = in_file
    if given.model is not None:
        stated = canonical_model(given.model).get("num_hidden_layers")
        layers = stated if isinstance(stated, int) and stated > 0 else layers
    if layers is None:
        raise missing("--model", "a Hugging Face config.json (its layers tell how many chunks a stage has)")
    return layers


def is_moe(given: Given, draft_model: dict[str, Any]) -> bool:
    model = canonical_model(given.model) if given.model is not None else draft_model
    return bool(model.get("num_experts"))


def assemble(draft: Draft, given: Given, framework: str) -> Imported:
    """Checks the result as `asap predict` would, or `asap optimize` where there is no plan."""
    scenario = {
        "model": given.model if given.model is not None else _model_of(draft),
        "cluster": _cluster(draft, given),
        "training": _training(draft, given) | {"framework": framework},
        **_plan(draft, given),
    }
    for name, value in given.replaced:
        part, _, key = name.partition(".")
        if part not in scenario or not key:
            allowed = "FIELD is model.NAME, cluster.NAME, training.NAME or plan.NAME"
            raise InputError("--set", name, allowed)
        scenario[part] = scenario[part] | {key: value}
    if "plan" in scenario and scenario["plan"].get("micro_batch_size") is None:
        raise missing("--micro-batch-size", "sequences that a device runs at once")
    parse_scenario(scenario, need_plan="plan" in scenario)
    return Imported(scenario, tuple(draft.notes))


def _plan(draft: Draft, given: Given) -> dict[str, Any]:
    if draft.plan is None:
        return {}
    stated = {"micro_batch_size": given.micro_batch_size} if given.micro_batch_size is not None else {}
    return {"plan": draft.plan | stated}


def _model_of(draft: Draft) -> dict[str, Any]:
    needed = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
    if any(draft.model.get(name) is None for name in needed):
        raise missing("--model", "a Hugging Face config.json")
    return {name: value for name, value in draft.model.items() if value is not None}


def _cluster(draft: Draft, given: Given) -> dict[str, Any]:
    if given.device is None:
        raise missing("--device", "a name of 'asap hardware list'")
    num_devices = given.num_devices or draft.num_devices
    if num_devices is None:
        raise missing("--num-devices", "how many devices the job runs on")
    if draft.num_devices not in (None, num_devices):
        allowed = f"the degrees in the file multiply to {draft.num_devices}"
        raise InputError("--num-devices", num_devices, allowed)
    cluster: dict[str, Any] = {"device": given.device, "num_devices": num_devices}
    return cluster | ({"devices_per_node": given.devices_per_node} if given.devices_per_node else {})


def _training(draft: Draft, given: Given) -> dict[str, Any]:
    training = dict(draft.training)
    for name in ("seq_len", "global_batch_size", "precision"):
        stated = getattr(given, name)
        if stated is not None:
            training[name] = stated
    for name, why in (("seq_len", "tokens in a sequence"), ("global_batch_size", "sequences in a step")):
        if training.get(name) is None:
            raise missing("--" + name.replace("_", "-"), why)
    return training
