"""/sessions/new: the form; /web/validate: what would be wrong with it, by the rules of the API."""

import json
from typing import Annotated, Any, get_args

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse
from pydantic import ValidationError

from service.api.dependencies import PartsOf, Submitter
from service.api.parts import Parts
from service.api.routes import sessions
from service.api.schemas.sessions import SessionCreate
from service.api.submissions import check_upload, new_session
from service.auth.caller import Caller
from service.errors import ConflictError
from service.report.text import gib, seconds
from service.store.ids import new_id
from service.store.sessions import get_session
from service.web.error_pages import PageRoute
from service.web.example import EXAMPLE
from service.web.forms import CheckedForm, Form
from service.web.rendering import page
from service.web.submission import DEGREES, HUGGING_FACE, KINDS, SCENARIO, body_of
from tools.cost.predict import predict
from tools.errors import InputError
from tools.hardware import PRECISIONS, device_names
from tools.scenario import RECOMPUTES, parse_scenario
from tools.scenario.spec import Framework

router = APIRouter(route_class=PageRoute)

POLICY = "policy"
FRAMEWORKS: tuple[str, ...] = get_args(Framework)
Source = Annotated[str | None, Query(alias="from", max_length=64, description="a session to begin with")]


@router.get("/sessions/new")
def show(
    request: Request, parts: PartsOf, caller: Submitter, source: Source = None, example: bool = False
) -> Response:
    values = _of_session(parts, caller, source) if source else _example() if example else {}
    return _form(request, caller, values, None)


@router.post("/sessions/new")
def submit(request: Request, form: CheckedForm, parts: PartsOf, caller: Submitter) -> Response:
    try:
        given = _parsed(form)
        found = sessions.submit(given, parts, caller, Response(), form.get("key") or None)
    except (InputError, ConflictError) as error:
        return _form(request, caller, form, error, 422)
    return RedirectResponse(f"/sessions/{found.id}", 303)


@router.post("/web/validate")
def validate(form: CheckedForm, parts: PartsOf, caller: Submitter) -> JSONResponse:
    try:
        new = new_session(parts, caller, _parsed(form), None)
        with parts.database.read() as conn:
            check_upload(conn, caller.tenant, new.request)
    except (InputError, ConflictError) as error:
        return JSONResponse({"ok": False, "field": error.field, "says": _says(error)})
    return JSONResponse({"ok": True, "field": None, "says": _summary(new.request)})


def _parsed(form: Form) -> SessionCreate:
    body = body_of(form)
    try:
        return SessionCreate(**body)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(".".join(map(str, first["loc"])), first["input"], first["msg"]) from None


def _summary(request: dict[str, Any]) -> str:
    """What is known before anything is searched."""
    described = {
        name: request[name] for name in ("model", "cluster", "training", "plan") if request.get(name)
    }
    if "plan" not in described:
        return "Ready. Without a plan of today it is a cold start."
    found = predict([parse_scenario(described)])[0]
    step_s, memory_gib = float(str(found["step_time_s"])), float(str(found["peak_memory_gib"]))
    fits = "" if found["fits"] else ", which does not fit"
    return (
        f"Ready. Today's plan is predicted at {seconds(step_s)} a step and {gib(memory_gib)} a device{fits}."
    )


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
        precisions=[one for one in PRECISIONS if one != "tf32"],
        frameworks=FRAMEWORKS,
        recomputes=RECOMPUTES,
        degrees=DEGREES,
        key=new_id(),
    )


def _of_session(parts: Parts, caller: Caller, id: str) -> Form:
    """A session's request, to be changed and submitted again; what has a field of its own stands there."""
    with parts.database.read() as conn:
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
