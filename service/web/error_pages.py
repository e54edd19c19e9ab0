"""Errors of pages as pages, where a browser asks; everybody else gets the API's problem document."""

import json
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, cast
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from service.api.problem_handlers import unexpected
from service.api.strict_route import StrictRoute
from service.logs import request_id
from service.web.rendering import page
from tools.errors import AsapError

log = logging.getLogger("asap.web")
ERRORS = (AsapError, HTTPException, RequestValidationError)
NOT_PAGES = ("/v1/", "/healthz", "/readyz", "/metrics", "/openapi.json")

Handler = Callable[[Request, Exception], Awaitable[Response]]


class PageRoute(StrictRoute):
    """What is not expected becomes a page too, and goes to the log."""

    takes_any_query = True

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handler(request)
            except ERRORS:
                raise
            except Exception:
                log.exception("page failed", extra={"path": request.url.path})
                told = unexpected().model_dump() | {"request_id": request_id.get()}
                return page(request, "error", None, 500, problem=told)

        return answer


def add_error_pages(app: FastAPI) -> None:
    """Goes in front of the API's handlers, which say what is wrong."""
    for kind in ERRORS:
        app.add_exception_handler(kind, _shown(cast("Handler", app.exception_handlers[kind])))


def _shown(told: Handler) -> Handler:
    async def show(request: Request, error: Exception) -> Response:
        answer = await told(request, error)
        if not is_page(request):
            return answer
        if answer.status_code == 401 and request.method == "GET":
            return RedirectResponse(f"/login?next={quote(_here(request), safe='')}", 303)
        problem = {"detail": "", "request_id": None, **json.loads(bytes(answer.body))}
        shown = page(request, "error", None, answer.status_code, problem=problem)
        for name in ("Retry-After", "Allow"):
            if name in answer.headers:
                shown.headers[name] = answer.headers[name]
        return shown

    return show


def is_page(request: Request) -> bool:
    path = request.url.path
    return "text/html" in request.headers.get("accept", "") and not path.startswith(NOT_PAGES)


def _here(request: Request) -> str:
    query = request.url.query
    return f"{request.url.path}?{query}" if query else request.url.path
