"""/sessions/new: the form, its conversion to the body of POST /v1/sessions, and /web/validate."""

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Annotated, Any, get_args

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse
from pydantic import ValidationError

from service import schemas as scenario
from service.api.deps import AppDep, Submitter
from service.api.sessions import SessionCreate
from service.api.state import AppState
from service.auth import Caller
from service.db.models import new_id
from service.errors import ConflictError
from service.render.text import gib, seconds, size_of
from service.strict_json import parse_object
from service.web.forms import CheckedForm, Form, labels_of, text_of, whole_number
from service.web.rendering import PageRoute, page
from tools.cost.memory import GIB
from tools.cost.predict import predict
from tools.cost.sizes import count_parameters
from tools.errors import InputError
from tools.frameworks import IMPORT_FORMATS, ImportOptions
from tools.frameworks.formats import HUGGING_FACE, is_scenario, parse_devices, preset_models, start_scenario
from tools.hardware import PRECISIONS, device_names
from tools.recommend.optimize import workload_of
from tools.scenario import RECOMPUTES, Scenario, parse_scenario
from tools.scenario.columns import CHOICES, MIN_VALUES
from tools.scenario.spec import REQUIRED_PLAN_FIELDS, SEARCHED_FIELDS, Framework
from tools.search.search import Search

Body = dict[str, Any]
"""The body of POST /v1/sessions, or a part of it, before it is parsed."""
_CHANGED = {"tp": 8, "pp": 4, "vpp": 1, "dp": 2, "dp_shard": 2, "recompute": "full"}
EXAMPLE: Body = {**scenario.EXAMPLE, "plan": {**scenario.PLAN, **_CHANGED}}


SCENARIO = "scenario"
KINDS = {
    "": "recognised",
    SCENARIO: "a whole scenario (JSON)",
    **{name: f"a configuration of {name}" for name in IMPORT_FORMATS if name != HUGGING_FACE},
    HUGGING_FACE: "a Hugging Face config.json",
}
CLUSTER = ("devices_per_node",)
TRAINING = ("seq_len", "global_batch_size", "precision", "framework")
NOT_ASKED = ("etp", "schedule")
"""Searched plan fields that the form leaves to the framework's default."""
PLAN = tuple(name for name in SEARCHED_FIELDS if name not in NOT_ASKED)
PLAN_DEFAULTS = {name: MIN_VALUES[name] for name in REQUIRED_PLAN_FIELDS if name != "dp"}
"""What an empty field stands for; data parallelism takes the devices that are left."""
WORDS = ("precision", "framework", "recompute")
OPTIONS = ("traces", "notes", "mode", "approval")
_OPTION_FIELDS = {
    "FILE": "config",
    "--model": "model_config",
    "--format": "kind",
    "--micro-batch-size": "plan.micro_batch_size",
    "--vocab-size": "model.vocab_size",
    "--device": "devices",
    "--num-devices": "devices",
    "cluster.device": "devices",
    "cluster.num_devices": "devices",
}
"""Fields of the form by the name that an error has for them."""
OWN = (
    "kind",
    "config",
    "model_config",
    "model.name",
    "model.vocab_size",
    "devices",
    "constraints",
    "labels",
    *OPTIONS,
)
FORM_FIELDS = (
    *OWN,
    *(f"cluster.{name}" for name in CLUSTER),
    *(f"training.{name}" for name in TRAINING),
    *(f"plan.{name}" for name in PLAN),
)


@dataclass(frozen=True)
class Reading:
    """What a form says: the request, and what it left to the file or to an assumption."""

    body: Body
    assumed: tuple[str, ...] = ()
    """Fields of `training` that nobody stated."""


def read_form(form: Form) -> Reading:
    """Raises InputError for the first thing that no request could say; it names a field of the form."""
    kind = form.get("kind", "")
    if kind not in KINDS:
        raise InputError("kind", kind, f"allowed: {', '.join(filter(None, KINDS))}")
    text = _model_text(form)
    try:
        is_whole = kind == SCENARIO or (not kind and is_scenario(text))
        reading = _with_fields(form, text) if is_whole else _imported(form, text, kind or None)
    except InputError as error:
        raise InputError(_form_field(error.field), error.given, error.allowed) from None
    stated = {name: value for name in OPTIONS if (value := text_of(form, name))}
    constraints = {"constraints": _json(form, "constraints")} if text_of(form, "constraints") else {}
    return replace(
        reading, body={**reading.body, **stated, **constraints, "labels": labels_of(form.get("labels", ""))}
    )


def _model_text(form: Form) -> str:
    """What was pasted, or the well-known model that was chosen."""
    preset = text_of(form, "preset")
    if text := text_of(form, "config"):
        return text
    if preset is None:
        raise InputError(
            "config", "nothing", "choose a model, paste its configuration, or drop the file here"
        )
    if preset not in preset_models():
        raise InputError("preset", preset, f"allowed: {', '.join(preset_models())}")
    return json.dumps(preset_models()[preset])


def _with_fields(form: Form, text: str) -> Reading:
    """A whole scenario; what is stated beside it wins."""
    body = parse_object(text.encode(), "config")
    devices: Body = {}
    if stated := text_of(form, "devices"):
        devices["num_devices"], devices["device"] = parse_devices(stated, "devices")
    for part, fields in (
        ("cluster", devices | _part(form, "cluster", CLUSTER)),
        ("training", _part(form, "training", TRAINING)),
        ("plan", _part(form, "plan", PLAN)),
    ):
        if fields:
            known = body.get(part)
            body[part] = {**(known if isinstance(known, dict) else {}), **fields}
    return Reading(body)


def _imported(form: Form, text: str, kind: str | None) -> Reading:
    """A model or a tool's file, with what is stated beside it."""
    if not (devices := text_of(form, "devices")):
        raise InputError("devices", "nothing", 'say what to train on, for example "64 x H100 SXM"')
    num_devices, device = parse_devices(devices, "devices")
    plan = _part(form, "plan", PLAN)
    start = start_scenario(
        text,
        kind,
        ImportOptions(
            model=_json(form, "model_config") if text_of(form, "model_config") else None,
            device=device,
            num_devices=num_devices,
            micro_batch_size=plan.get("micro_batch_size"),
            vocab_size=_part(form, "model", ("vocab_size",)).get("vocab_size"),
            **_part(form, "cluster", CLUSTER),
            **_part(form, "training", TRAINING),
        ),
    )
    body: Body = dict(start.imported.scenario)
    if name := text_of(form, "model.name"):
        body["model"] = {**body["model"], "name": name}
    if plan:
        body["plan"] = {**body["plan"], **plan} if "plan" in body else _complete_plan(plan, num_devices)
    return Reading(body, tuple(start.assumed))


def _complete_plan(plan: Body, num_devices: int) -> Body:
    whole = {**PLAN_DEFAULTS, **plan}
    others = whole["tp"] * whole["pp"] * whole["cp"]
    whole.setdefault("dp", max(num_devices // others, 1) if others else 1)
    return whole


def _form_field(name: str) -> str:
    """The field of the form that holds what an error is about."""
    if name in FORM_FIELDS:
        return name
    if name in _OPTION_FIELDS:
        return _OPTION_FIELDS[name]
    option = name.removeprefix("--").replace("-", "_")
    for part, names in (("cluster", CLUSTER), ("training", TRAINING), ("plan", PLAN)):
        if option in names:
            return f"{part}.{option}"
    parts = {"cluster": "devices", "training": "training.seq_len", "plan": "plan.tp"}
    return parts.get(name.partition(".")[0], "config")


def _part(form: Form, part: str, names: tuple[str, ...]) -> Body:
    """The fields that were filled in, each by its type."""
    texts = {name: text_of(form, f"{part}.{name}") for name in names}
    return {
        name: _parse_field(f"{part}.{name}", name, text) for name, text in texts.items() if text is not None
    }


def _parse_field(field: str, name: str, text: str) -> object:
    if name in WORDS:
        return text
    if name == "sequence_parallel":
        return text == "true"
    return whole_number(field, text.replace(",", "").replace("_", "").replace(" ", ""))


def _json(form: Form, name: str) -> Body:
    text = text_of(form, name)
    if text is None:
        raise InputError(name, "nothing", "paste it here, or choose the file")
    try:
        return parse_object(text.encode(), name)
    except InputError as error:
        line = error.field.removeprefix(name).strip()
        raise InputError(name, error.given, f"{line}: {error.allowed}" if line else error.allowed) from None


router = APIRouter(route_class=PageRoute)

POLICY = "policy"
FRAMEWORKS: tuple[str, ...] = get_args(Framework)
Source = Annotated[str | None, Query(alias="from", max_length=64, description="a session to begin with")]


@router.get("/sessions/new")
def show(
    request: Request, app: AppDep, caller: Submitter, source: Source = None, example: bool = False
) -> Response:
    values = _of_session(app, caller, source) if source else _example() if example else {}
    return _form(request, caller, values, None)


@router.post("/sessions/new")
def submit(request: Request, form: CheckedForm, app: AppDep, caller: Submitter) -> Response:
    try:
        row = app.sessions.submit(caller, _parse_form(form)[0].submission(_idempotency_key(form)))
    except (InputError, ConflictError) as error:
        return _form(request, caller, form, error, 422)
    return RedirectResponse(f"/sessions/{row.id}", 303)


def _idempotency_key(form: Form) -> str | None:
    """The same form sent twice is one session; changed after Back, it is another."""
    return hashlib.sha256(json.dumps(form, sort_keys=True).encode()).hexdigest() if form.get("key") else None


@router.post("/web/validate")
def validate(form: CheckedForm, app: AppDep, caller: Submitter) -> JSONResponse:
    """What is wrong, or the size of the model, whether it fits and what was assumed."""
    try:
        body, reading = _parse_form(form)
        submission = body.submission()
        app.sessions.check(caller, submission)
    except (InputError, ConflictError) as error:
        field = _form_field(error.field or "config")
        return JSONResponse({"ok": False, "field": field, "says": _says(error), "model": _size(form)})
    scenario = parse_scenario(_described(submission.request), need_plan=False)
    answer = {"ok": True, "field": None, "says": _summary(scenario), "model": _size_of(scenario)}
    return JSONResponse(answer | {"filled": _filled(form, scenario, reading)})


def _parse_form(form: Form) -> tuple[SessionCreate, Reading]:
    reading = read_form(form)
    try:
        return SessionCreate(**reading.body), reading
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(".".join(map(str, first["loc"])), first["input"], first["msg"]) from None


def _described(request: Body) -> Body:
    return {name: request[name] for name in ("model", "cluster", "training", "plan") if request.get(name)}


def _filled(form: Form, scenario: Scenario, reading: Reading) -> dict[str, dict[str, str]]:
    """Fields that were left empty, with the value that they take and where it comes from."""
    values = {f"cluster.{name}": getattr(scenario.cluster, name) for name in CLUSTER}
    values |= {f"training.{name}": getattr(scenario.training, name) for name in TRAINING}
    assumed = {f"training.{name}" for name in reading.assumed} | {f"cluster.{name}" for name in CLUSTER}
    return {
        name: {"value": str(value), "source": "assumed" if name in assumed else "from the file"}
        for name, value in values.items()
        if not text_of(form, name)
    }


def _size(form: Form) -> str:
    """The model's size while the rest of the form is still wrong; empty if the model is what is wrong."""
    alone: Form = {"devices": "1 x h100", "plan.micro_batch_size": "1"}
    alone |= {
        name: text for name, text in form.items() if name in ("kind", "config", "preset", "model_config")
    }
    try:
        return _size_of(parse_scenario(_described(read_form(alone).body), need_plan=False))
    except InputError:
        return ""


def _size_of(scenario: Scenario) -> str:
    count = count_parameters(scenario.model)
    return f"{scenario.model.name or 'The model'} has {size_of(count.total, count.active, ' parameters')}."


def _summary(scenario: Scenario) -> str:
    """Whether any plan could fit, and a prediction of today's plan; nothing is searched."""
    workload = workload_of(scenario)
    search = Search(scenario, workload.constraints, workload.calibration)
    least_gib, usable = search.least_bytes() / GIB, f"of {gib(workload.limit_gib)} usable per device"
    if least_gib <= workload.limit_gib:
        fits = f"Fits: plans begin at about {gib(least_gib)} {usable}."
    elif least_gib < float("inf"):
        fits = f"Does not fit: every plan needs at least about {gib(least_gib)} {usable}."
    else:
        fits = f"{scenario.training.framework} accepts no plan for these devices and this batch."
    if scenario.plan is None:
        return fits
    prediction = predict([scenario])[0]
    step_s, memory_gib = prediction.step_time_s, prediction.peak_memory_gib
    too_large = "" if prediction.fits else ", which does not fit"
    cost = f"{seconds(step_s)} per step and {gib(memory_gib)} per device{too_large}"
    return f"{fits} Today's plan is predicted to take {cost}."


def _says(error: InputError | ConflictError) -> str:
    if isinstance(error, ConflictError):
        return str(error)
    return error.allowed if error.given is None else f"got {str(error.given)[:60]}; {error.allowed}"


def _form(
    request: Request,
    caller: Caller,
    values: Form,
    error: InputError | ConflictError | None,
    status: int = 200,
) -> Response:
    return page(
        request,
        "new_session",
        caller,
        status,
        values=values,
        wrong={"field": _form_field(error.field or "config"), "says": _says(error)} if error else None,
        kinds=KINDS,
        presets=tuple(preset_models()),
        devices=device_names(),
        precisions=[precision for precision in PRECISIONS if precision != "tf32"],
        frameworks=FRAMEWORKS,
        recomputes=RECOMPUTES,
        plan_numbers=_plan_numbers(),
        key=new_id(),
    )


def _plan_numbers() -> dict[str, str]:
    """The integer fields of a plan in the form, each with what stands in it while it is empty."""
    hints = {
        name: str(PLAN_DEFAULTS.get(name, "derived" if name in ("dp", "dp_shard") else "default"))
        for name in PLAN
    }
    return {name: hint for name, hint in hints.items() if name not in CHOICES}


def _of_session(app: AppState, caller: Caller, id: str) -> Form:
    """A session's request, to be changed and submitted again; what has a field of its own stands there."""
    row = app.sessions.get(caller, id, report=False)
    own = ("mode",) if row.approval == POLICY else ("mode", "approval")
    request = {name: value for name, value in (row.request or {}).items() if name not in own}
    if row.budget:
        request["budget"] = row.budget
    labels = ", ".join(f"{name}={value}" if value else name for name, value in row.labels.items())
    text = json.dumps(request, indent=2, ensure_ascii=False)
    return {"kind": SCENARIO, "config": text, "labels": labels, "mode": row.mode, "approval": row.approval}


def _example() -> Form:
    values = {"kind": HUGGING_FACE, "config": json.dumps(EXAMPLE["model"], indent=2)}
    cluster = EXAMPLE["cluster"]
    values["devices"] = f"{cluster['num_devices']} x {cluster['device']}"
    values["cluster.devices_per_node"] = str(cluster["devices_per_node"])
    for part in ("training", "plan"):
        for name, value in EXAMPLE[part].items():
            values[f"{part}.{name}"] = str(value).lower() if isinstance(value, bool) else str(value)
    return values
