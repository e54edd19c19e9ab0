"""Errors as pages, where a browser asks for one: the API's own handlers describe what is wrong."""

import json
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import cast
from urllib.parse import quote

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse

from service.http.problems import unexpected
from service.http.strict import StrictRoute
from service.logs import request_id
from service.web.rendering import page
from tools.errors import AsapError

ERRORS = (AsapError, HTTPException, RequestValidationError)
NOT_PAGES = ("/v1/", "/healthz", "/readyz", "/metrics", "/openapi.json")

Handler = Callable[[Request, Exception], Awaitable[Response]]

log = logging.getLogger("asap.web")


class PageRoute(StrictRoute):
    """Unexpected errors become a page too, and are logged."""

    takes_any_query = True

    def get_route_handler(self) -> Callable[[Request], Coroutine[None, None, Response]]:
        handler = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handler(request)
            except ERRORS:
                raise
            except Exception:
                log.exception("page failed", extra={"path": request.url.path})
                problem = unexpected().model_dump() | {"request_id": request_id.get()}
                return page(request, "error", None, 500, problem=problem)

        return answer


def add_error_pages(app: FastAPI) -> None:
    for kind in ERRORS:
        app.add_exception_handler(kind, _as_page(cast("Handler", app.exception_handlers[kind])))


def _as_page(handler: Handler) -> Handler:
    async def show(request: Request, error: Exception) -> Response:
        answer = await handler(request, error)
        path, query = request.url.path, request.url.query
        if "text/html" not in request.headers.get("accept", "") or path.startswith(NOT_PAGES):
            return answer
        if answer.status_code == 401 and request.method == "GET":
            following = f"{path}?{query}" if query else path
            return RedirectResponse(f"/login?next={quote(following, safe='')}", 303)
        problem = {"detail": "", "request_id": None, **json.loads(bytes(answer.body))}
        response = page(request, "error", None, answer.status_code, problem=problem)
        for name in ("Retry-After", "Allow"):
            if name in answer.headers:
                response.headers[name] = answer.headers[name]
        return response

    return show
