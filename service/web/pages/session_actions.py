"""What a person does to a session from its page: forms in front of the API's own functions, and ways back."""

from typing import Any

from fastapi import APIRouter
from fastapi.responses import RedirectResponse, Response

from service.api.dependencies import Approver, Id, PartsOf, Reader
from service.api.routes import reports, session_actions, sessions
from service.api.schemas.reports import DecisionCreate
from service.store.sessions import get_session
from service.web.buttons import add_buttons
from service.web.error_pages import PageRoute
from service.web.forms import CheckedForm, Form, text_of, whole_number
from service.web.views.session import session_view
from tools.errors import InputError

HERE = "/sessions/{id}"
PLAN = "plan."

router = APIRouter(prefix=HERE, route_class=PageRoute)
add_buttons(
    router,
    "",
    {
        "cancel": (session_actions.cancel, HERE),
        "retry": (session_actions.run_again, HERE),
        "delete": (sessions.delete, "/"),
    },
)


@router.post("/decision")
def decide(id: Id, form: CheckedForm, parts: PartsOf, caller: Approver) -> Response:
    with parts.database.read() as conn:
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
    session_actions.make_decision(id, DecisionCreate(**given), parts, caller)
    return RedirectResponse(f"/sessions/{id}", 303)


@router.get("/report.md")
def markdown(id: Id, parts: PartsOf, caller: Reader) -> Response:
    return reports.get_report(id, parts, caller, reports.MARKDOWN)


@router.get("/proposals/{rank}/export")
def export(id: Id, rank: reports.Rank, format: str, parts: PartsOf, caller: Reader) -> Response:
    """The configuration as a file."""
    return reports.export_proposal(id, rank, format, parts, caller, reports.PLAIN)


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
