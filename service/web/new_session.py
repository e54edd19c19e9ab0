"""/sessions/new: the form, its conversion to the body of POST /v1/sessions, and /web/validate."""

import json
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
from service.db.sessions import get_session
from service.errors import ConflictError
from service.render.text import gib, seconds
from service.strict_json import parse_object
from service.web.forms import CheckedForm, Form, text_of, whole_number
from service.web.rendering import PageRoute, page
from tools.cost.predict import predict
from tools.errors import InputError
from tools.frameworks import IMPORT_FORMATS, ImportOptions, import_plan
from tools.hardware import PRECISIONS, device_names
from tools.scenario import RECOMPUTES, parse_scenario
from tools.scenario.columns import CHOICES, MIN_VALUES
from tools.scenario.spec import REQUIRED_PLAN_FIELDS, SEARCHED_FIELDS, Framework

Body = dict[str, Any]
"""The body of POST /v1/sessions, or a part of it, before it is parsed."""
_CHANGED = {"tp": 8, "pp": 4, "vpp": 1, "dp": 2, "dp_shard": 2, "recompute": "full"}
EXAMPLE: Body = {**scenario.EXAMPLE, "plan": {**scenario.PLAN, **_CHANGED}}


HUGGING_FACE, SCENARIO = "huggingface", "scenario"
KINDS = {
    HUGGING_FACE: "a Hugging Face config.json",
    SCENARIO: "a whole scenario (JSON)",
    **{name: f"a configuration of {name}" for name in IMPORT_FORMATS if name != HUGGING_FACE},
}
CLUSTER = ("device", "num_devices", "devices_per_node")
TRAINING = ("seq_len", "global_batch_size", "precision", "framework")
NOT_ASKED = ("etp", "schedule")
"""Searched plan fields that the form leaves to the framework's default."""
PLAN = tuple(name for name in SEARCHED_FIELDS if name not in NOT_ASKED)
PLAN_DEFAULTS = {name: MIN_VALUES[name] for name in REQUIRED_PLAN_FIELDS if name != "dp"}
"""What an empty field stands for; data parallelism takes the devices that are left."""
WORDS = ("device", "precision", "framework", "recompute")
OPTIONS = ("traces", "notes", "mode", "approval")
_OPTION_FIELDS = {
    "FILE": "config",
    "--model": "model_config",
    "--format": "kind",
    "--micro-batch-size": "plan.micro_batch_size",
}


def body_of(form: Form) -> Body:
    """Raises InputError for the first thing that no request could say."""
    kind = form.get("kind", HUGGING_FACE)
    if kind not in KINDS:
        raise InputError("kind", kind, f"allowed: {', '.join(KINDS)}")
    if kind == SCENARIO:
        body = _json(form, "config")
    elif kind == HUGGING_FACE:
        body = _body_from_fields(form)
    else:
        body = _body_from_config(form, kind)
    stated = {name: value for name in OPTIONS if (value := text_of(form, name))}
    constraints = {"constraints": _json(form, "constraints")} if text_of(form, "constraints") else {}
    return {**body, **stated, **constraints, "labels": _labels(form)}


def _body_from_fields(form: Form) -> Body:
    model = _json(form, "config")
    if name := text_of(form, "model.name"):
        model["name"] = name
    body = {
        "model": model,
        "cluster": _part(form, "cluster", CLUSTER),
        "training": _part(form, "training", TRAINING),
    }
    plan = _part(form, "plan", PLAN)
    return {**body, "plan": _complete_plan(plan, body["cluster"])} if plan else body


def _complete_plan(plan: Body, cluster: Body) -> Body:
    whole = {**PLAN_DEFAULTS, **plan}
    others, devices = whole["tp"] * whole["pp"] * whole["cp"], cluster.get("num_devices", 0)
    whole.setdefault("dp", max(devices // others, 1) if others else 1)
    return whole


def _body_from_config(form: Form, kind: str) -> Body:
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
            form.get("config", ""), kind, ImportOptions(model=model, **stated, **micro_batch)
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


def _labels(form: Form) -> dict[str, str]:
    """`name=value` and `name`, between commas."""
    labels = {}
    for piece in (form.get("labels") or "").split(","):
        name, _, value = piece.strip().partition("=")
        if name:
            labels[name.strip()] = value.strip()
    return labels


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
        row = app.sessions.submit(caller, _parse_form(form).submission(form.get("key") or None))
    except (InputError, ConflictError) as error:
        return _form(request, caller, form, error, 422)
    return RedirectResponse(f"/sessions/{row.id}", 303)


@router.post("/web/validate")
def validate(form: CheckedForm, app: AppDep, caller: Submitter) -> JSONResponse:
    try:
        submission = _parse_form(form).submission()
        app.sessions.check(caller, submission)
    except (InputError, ConflictError) as error:
        return JSONResponse({"ok": False, "field": error.field, "says": _says(error)})
    return JSONResponse({"ok": True, "field": None, "says": _summary(submission.request)})


def _parse_form(form: Form) -> SessionCreate:
    body = body_of(form)
    try:
        return SessionCreate(**body)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(".".join(map(str, first["loc"])), first["input"], first["msg"]) from None


def _summary(request: Body) -> str:
    """A prediction of today's plan, before anything is searched."""
    described = {
        name: request[name] for name in ("model", "cluster", "training", "plan") if request.get(name)
    }
    if "plan" not in described:
        return "Ready. There is no plan of today to compare with."
    prediction = predict([parse_scenario(described)])[0]
    step_s, memory_gib = prediction.step_time_s, prediction.peak_memory_gib
    fits = "" if prediction.fits else ", which does not fit"
    cost = f"{seconds(step_s)} per step and {gib(memory_gib)} per device{fits}"
    return f"Ready. Today's plan is predicted to take {cost}."


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
        wrong={"field": error.field, "says": _says(error)} if error else None,
        kinds=KINDS,
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
    with app.database.read() as conn:
        row = get_session(conn, caller.tenant, id)
    own = ("mode",) if row.approval == POLICY else ("mode", "approval")
    request = {name: value for name, value in (row.request or {}).items() if name not in own}
    if row.budget:
        request["budget"] = row.budget
    labels = ", ".join(f"{name}={value}" if value else name for name, value in row.labels.items())
    text = json.dumps(request, indent=2, ensure_ascii=False)
    return {"kind": SCENARIO, "config": text, "labels": labels, "mode": row.mode, "approval": row.approval}


def _example() -> Form:
    values = {"kind": HUGGING_FACE, "config": json.dumps(EXAMPLE["model"], indent=2)}
    for part in ("cluster", "training", "plan"):
        for name, value in EXAMPLE[part].items():
            values[f"{part}.{name}"] = str(value).lower() if isinstance(value, bool) else str(value)
    return values
