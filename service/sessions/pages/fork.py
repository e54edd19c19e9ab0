"""/sessions/{id}/fork: the form that goes on from a step of a session with other words, as a new session."""

import json
from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi.responses import RedirectResponse

from graph.request import Fork
from service.http.deps import Id
from service.sessions.forks import fork_origin
from service.sessions.pages.view import follow_session
from service.sessions.usecases import Sessions
from service.strict_json import parse_object
from service.web.errors import PageRoute
from service.web.forms import CheckedForm, FormFields, text_of, whole_number
from service.web.rendering import Page, SubmitterPage
from tools.errors import InputError
from tools.scenario.fields import build

router = APIRouter(prefix="/sessions/{id}/fork", route_class=PageRoute)


@router.get("")
def show(id: Id, page: SubmitterPage, step: Annotated[str, Query(max_length=10)] = "1") -> Response:
    return _show(id, page, {"step": step})


@router.post("")
def fork(id: Id, form: CheckedForm, page: SubmitterPage) -> Response:
    try:
        made = page.app.get(Sessions).fork(page.caller, id, _fork_of(id, form, page))
    except InputError as error:
        return _show(id, page, form, str(error))
    return RedirectResponse(f"/sessions/{made.id}", 303)


def _fork_of(id: str, form: FormFields, page: Page) -> Fork:
    """Only what differs from the session's own request is stated."""
    request = page.app.get(Sessions).get(page.caller, id, report=False).request
    stated: dict[str, object] = {"step": whole_number("step", form.get("step", ""))}
    if (notes := form.get("notes", "")) != (request.get("notes") or ""):
        stated["notes"] = notes
    constraints = parse_object((form.get("constraints") or "{}").encode(), "constraints")
    if constraints != (request.get("constraints") or {}):
        stated["constraints"] = constraints
    if plan := text_of(form, "plan"):
        stated["decision"] = {"action": "submit", "plan": parse_object(plan.encode(), "plan")}
    return build(Fork, stated)


def _show(id: str, page: Page, form: FormFields, wrong: str | None = None) -> Response:
    session, events = follow_session(page, id)
    request, step = session.row.request, whole_number("step", form.get("step", ""))
    return page(
        "fork",
        status=422 if wrong else 200,
        session=session,
        origin=fork_origin(session.row, events, Fork(step=min(max(step, 1), len(events)))),
        step=step,
        notes=form.get("notes", request.get("notes") or ""),
        constraints=form.get("constraints", json.dumps(request.get("constraints") or {})),
        plan=form.get("plan", ""),
        wrong=wrong,
    )
