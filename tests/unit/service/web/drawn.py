"""Pages without a server: a template of the pages with its content, as a reader with every scope gets it."""

from starlette.requests import Request

from graph.report import Report
from service.access.auth import Caller
from service.sessions.model import SessionRow
from service.web.rendering import page

EVERYTHING = frozenset(("read", "submit", "approve"))
PATH = "/sessions/0"


def drawn(template: str, **content: object) -> str:
    scope = {"type": "http", "method": "GET", "path": PATH, "headers": [], "query_string": b""}
    request = Request(scope | {"scheme": "http", "server": ("testserver", 80)})
    return bytes(page(request, template, Caller("ada", "", EVERYTHING, "ada"), 200, **content).body).decode()


def completed(report: Report) -> SessionRow:
    return SessionRow(state="completed", attempt=1, report=report.model_dump(mode="json"))
