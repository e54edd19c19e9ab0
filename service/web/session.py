"""/sessions/{id}: the report, its figures, and the forms to decide, cancel, retry, delete and export."""

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from service.api.deps import AppDep, Approver, Id, Reader
from service.api.reports import Rank, file_response
from service.db.models import new_id
from service.db.sessions import events_after, get_session
from service.errors import ConflictError, NotFoundError
from service.render.markdown import markdown_report
from service.sessions import export_proposal, missing_result
from service.web.accuracy import DENSE, EXPERTS, find_validation, trust_of
from service.web.forms import CheckedForm, Form, add_buttons, text_of, whole_number
from service.web.rendering import PageRoute, figure_answer, page
from service.web.session_figures import FIGURES, Asked
from service.web.session_view import brought_by_people, session_view
from service.web.trail import trail_of
from tools.errors import InputError
from tools.frameworks import EXPORT_FORMATS
from tools.scenario import RECOMPUTES

_BY_FRAMEWORK = {"megatron-core": "megatron", "torch-fsdp": "accelerate", "torch-fsdp2": "torchtitan"}


def format_for(request: Mapping[str, Any]) -> str:
    framework = str((request.get("training") or {}).get("framework", ""))
    wanted = _BY_FRAMEWORK.get(framework, framework)
    return wanted if wanted in EXPORT_FORMATS else next(iter(EXPORT_FORMATS))


router = APIRouter(prefix="/sessions/{id}", route_class=PageRoute)


@router.get("")
def show(id: Id, request: Request, app: AppDep, caller: Reader) -> Response:
    with app.database.read() as conn:
        row = get_session(conn, caller.tenant, id)
        events = events_after(conn, id, 0)
    shown = session_view(row)
    return page(
        request,
        "session",
        caller,
        shown=shown,
        trail=trail_of(events),
        brought=brought_by_people(events),
        formats=EXPORT_FORMATS,
        default_format=format_for(row.request or {}),
        recomputes=RECOMPUTES,
        trust=trust_of(find_validation(), EXPERTS if shown.has_experts else DENSE),
        decision_id=new_id(),
    )


@router.get("/figures/{name}")
def get_figure(
    id: Id, name: str, request: Request, app: AppDep, caller: Reader, plan: str = "1", by: str = ""
) -> Response:
    """Plotly's JSON; colours are names of the stylesheet's custom properties."""
    if name not in FIGURES:
        raise NotFoundError("figure", name)
    with app.database.read() as conn:
        shown = session_view(get_session(conn, caller.tenant, id))
    if shown.view is None:
        raise ConflictError(f"session {id} is {shown.row.state}; there is nothing to draw yet", field="state")
    asked = Asked(app, request.app.state.searched_spaces, shown, shown.view, plan, by)
    return figure_answer(request, FIGURES[name](asked))


HERE = "/sessions/{id}"
PLAN = "plan."

actions_router = APIRouter(prefix=HERE, route_class=PageRoute)
add_buttons(
    actions_router,
    "",
    {
        "cancel": (lambda app, caller, id: app.sessions.cancel(caller, id), HERE),
        "retry": (lambda app, caller, id: app.sessions.retry(caller, id), HERE),
        "delete": (lambda app, caller, id: app.sessions.delete(caller, id), "/"),
    },
)


@actions_router.post("/decision")
def decide(id: Id, form: CheckedForm, app: AppDep, caller: Approver) -> Response:
    with app.database.read() as conn:
        shown = session_view(get_session(conn, caller.tenant, id))
    rank = whole_number("proposal", form.get("proposal", ""))
    known: dict[str, Any] = next(
        (one["plan"] for one in (shown.report or {}).get("proposals", []) if one["rank"] == rank), {}
    )
    given: dict[str, Any] = {
        "action": form.get("action"),
        "proposal": rank,
        "id": text_of(form, "id"),
        "comment": text_of(form, "comment"),
    }
    if form.get("action") == "edit":
        given["plan"] = changed_fields(form, known)
    app.sessions.decide(caller, id, given)
    return RedirectResponse(f"/sessions/{id}", 303)


@actions_router.get("/report.md")
def markdown(id: Id, app: AppDep, caller: Reader) -> Response:
    row = app.sessions.get(caller, id)
    if row.report is None:
        raise missing_result(row, "it has a report when it is completed")
    return Response(markdown_report(row.request or {}, row.report), media_type="text/markdown")


@actions_router.get("/proposals/{rank}/export")
def export(id: Id, rank: Rank, format: str, app: AppDep, caller: Reader) -> Response:
    """The configuration as a file."""
    return file_response(export_proposal(app.sessions.get(caller, id), rank, format))


def changed_fields(form: Form, known: dict[str, Any]) -> dict[str, Any]:
    """What was changed in the form of a plan, by the type that the field has there."""
    given = {name.removeprefix(PLAN): text for name, text in form.items() if name.startswith(PLAN)}
    typed = {name: _typed(name, text, known.get(name)) for name, text in given.items() if text}
    changed = {name: value for name, value in typed.items() if value != known.get(name)}
    if not changed:
        raise InputError("plan", "the plan as it is", "change at least one field")
    return changed


def _typed(name: str, text: str, known: object) -> object:
    if isinstance(known, bool):
        return text == "true"
    if isinstance(known, int):
        return whole_number(f"plan.{name}", text)
    return text
