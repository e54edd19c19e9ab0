"""From the form of a new session to the body of POST /v1/sessions; what is wrong names its field.

Not here: the rules. The API's own functions check the body, for the form as for everybody.
"""

from typing import Any

from service.cli.strict_json import parse_object
from service.web.forms import Form, text_of, whole_number
from tools.errors import InputError
from tools.imports import IMPORT_FORMATS, Given, import_plan

HUGGING_FACE, SCENARIO = "huggingface", "scenario"
KINDS = {
    HUGGING_FACE: "a Hugging Face config.json",
    SCENARIO: "a whole scenario (JSON)",
    **{name: f"a configuration of {name}" for name in IMPORT_FORMATS if name != HUGGING_FACE},
}
CLUSTER = ("device", "num_devices", "devices_per_node")
TRAINING = ("seq_len", "global_batch_size", "precision", "framework")
DEGREES = ("tp", "pp", "cp", "ep")
PLAN = (*DEGREES, "vpp", "dp", "dp_shard", "zero_stage", "micro_batch_size", "sequence_parallel", "recompute")
WORDS = ("device", "precision", "framework", "recompute")
OPTIONS = ("traces", "notes", "mode", "approval")
_OPTION_FIELDS = {
    "FILE": "config",
    "--model": "model_config",
    "--format": "kind",
    "--micro-batch-size": "plan.micro_batch_size",
}


def body_of(form: Form) -> dict[str, Any]:
    """Raises InputError for the first thing that no request could say."""
    kind = form.get("kind", HUGGING_FACE)
    if kind not in KINDS:
        raise InputError("kind", kind, f"allowed: {', '.join(KINDS)}")
    if kind == SCENARIO:
        body = _json(form, "config")
    elif kind == HUGGING_FACE:
        body = _described(form)
    else:
        body = _imported(form, kind)
    stated = {name: value for name in OPTIONS if (value := text_of(form, name))}
    constraints = {"constraints": _json(form, "constraints")} if text_of(form, "constraints") else {}
    return {**body, **stated, **constraints, "labels": _labels(form)}


def _described(form: Form) -> dict[str, Any]:
    model = _json(form, "config")
    if name := text_of(form, "model.name"):
        model["name"] = name
    body = {
        "model": model,
        "cluster": _part(form, "cluster", CLUSTER),
        "training": _part(form, "training", TRAINING),
    }
    plan = _part(form, "plan", PLAN)
    return {**body, "plan": _completed(plan, body["cluster"])} if plan else body


def _completed(plan: dict[str, Any], cluster: dict[str, Any]) -> dict[str, Any]:
    """What the form says stands beside its empty fields: degrees of 1, and data parallelism that follows."""
    whole = {**dict.fromkeys(DEGREES, 1), "zero_stage": 0, "micro_batch_size": 1, **plan}
    others, devices = whole["tp"] * whole["pp"] * whole["cp"], cluster.get("num_devices", 0)
    whole.setdefault("dp", max(devices // others, 1) if others else 1)
    whole.setdefault("dp_shard", whole["dp"] * whole["cp"] if whole["zero_stage"] else 1)
    return whole


def _imported(form: Form, kind: str) -> dict[str, Any]:
    """What a framework's file says, with what stands beside it in the form."""
    stated = {
        name: value
        for part, names in (("cluster", CLUSTER), ("training", TRAINING[:3]))
        for name, value in _part(form, part, names).items()
    }
    model = _json(form, "model_config") if text_of(form, "model_config") else None
    micro_batch = _part(form, "plan", ("micro_batch_size",))
    try:
        scenario = import_plan(
            form.get("config", ""), kind, Given(model=model, **stated, **micro_batch)
        ).scenario
    except InputError as error:
        raise InputError(_form_field(error.field), error.given, error.allowed) from None
    if name := text_of(form, "model.name"):
        scenario["model"] = {**scenario["model"], "name": name}
    return scenario


def _form_field(option: str) -> str:
    """Where in the form an option of `asap import` stands."""
    name = option.removeprefix("--").replace("-", "_")
    part = next(
        (part for part, names in (("cluster", CLUSTER), ("training", TRAINING)) if name in names), None
    )
    return _OPTION_FIELDS.get(option) or (f"{part}.{name}" if part else option)


def _part(form: Form, part: str, names: tuple[str, ...]) -> dict[str, Any]:
    """The fields that were filled in, each by its type."""
    given = {name: text_of(form, f"{part}.{name}") for name in names}
    return {name: _typed(f"{part}.{name}", name, text) for name, text in given.items() if text is not None}


def _typed(field: str, name: str, text: str) -> object:
    if name in WORDS:
        return text
    if name == "sequence_parallel":
        return text == "true"
    return whole_number(field, text.replace(",", "").replace("_", "").replace(" ", ""))


def _json(form: Form, name: str) -> dict[str, Any]:
    text = text_of(form, name)
    if text is None:
        raise InputError(name, "nothing", "paste it here, or choose the file")
    try:
        return parse_object(text.encode(), name)
    except InputError as error:
        line = error.field.removeprefix(name).strip()
        raise InputError(name, error.given, f"{line}: {error.allowed}" if line else error.allowed) from None


def _labels(form: Form) -> dict[str, str]:
    """`name=value` and `name`, between commas."""
    found = {}
    for piece in (form.get("labels") or "").split(","):
        name, _, value = piece.strip().partition("=")
        if name:
            found[name.strip()] = value.strip()
    return found
