"""What every page shares: static files, the CSRF token, templates, figures as compressed JSON, and errors as
pages.
"""

import gzip
import hashlib
import hmac
import json
import logging
import mimetypes
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, cast
from urllib.parse import quote

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from jinja2 import Environment
from markupsafe import Markup, escape
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse

from service import __version__
from service.api.deps import StrictRoute
from service.api.errors import unexpected
from service.auth import COOKIE, LOCAL, Caller
from service.errors import ForbiddenError, NotFoundError
from service.logs import request_id
from service.render import text
from service.render.plotly import SCRIPT, plotly_script
from service.render.report import html_environment
from tools.errors import AsapError

PREFIX = "/static"
IMMUTABLE = "public, max-age=31536000, immutable"
MIN_GZIP_BYTES = 1000

router = APIRouter(prefix=PREFIX)


@dataclass(frozen=True)
class Asset:
    body: bytes
    media_type: str

    @property
    def is_worth_compressing(self) -> bool:
        return len(self.body) >= MIN_GZIP_BYTES


@cache
def all_assets() -> dict[str, Asset]:
    folder = files("service.web").joinpath("static")
    own = {file.name: file.read_bytes() for file in sorted(folder.iterdir(), key=lambda file: file.name)}
    trends = files("service.render").joinpath("templates", "nightly.css").read_bytes()
    every = {**own, SCRIPT: plotly_script().encode(), "trends.css": trends}
    return {name: Asset(body, _media_type(name)) for name, body in every.items()}


@cache
def digest() -> str:
    whole = hashlib.sha256()
    for name, asset in all_assets().items():
        whole.update(name.encode() + b"\0" + hashlib.sha256(asset.body).digest())
    return whole.hexdigest()[:16]


def address_of(name: str) -> str:
    """Raises KeyError for a file that does not exist: a template with a typo must not be served."""
    all_assets()[name]
    return f"{PREFIX}/{digest()}/{name}"


@router.get("/{version}/{name}")
def get_asset(version: str, name: str, request: Request) -> Response:
    """An address of another version, as during an upgrade, gets the current file, uncached."""
    asset = all_assets().get(name)
    if asset is None:
        raise NotFoundError("file", name)
    headers = {"Cache-Control": IMMUTABLE if version == digest() else "no-cache", "Vary": "Accept-Encoding"}
    if asset.is_worth_compressing and "gzip" in request.headers.get("accept-encoding", ""):
        return Response(
            _gzipped(name), media_type=asset.media_type, headers=headers | {"Content-Encoding": "gzip"}
        )
    return Response(asset.body, media_type=asset.media_type, headers=headers)


@cache
def _gzipped(name: str) -> bytes:
    return gzip.compress(all_assets()[name].body, 6, mtime=0)


def _media_type(name: str) -> str:
    if name.endswith(".js"):
        return "text/javascript"
    return mimetypes.guess_type(name)[0] or "application/octet-stream"


BROWSER_COOKIE = "asap_browser"
FIELD = "csrf"


@dataclass(frozen=True)
class Csrf:
    token: str
    new_cookie: str | None
    """To be set if the browser has none yet."""

    def set_on(self, request: Request, response: Response) -> None:
        if self.new_cookie:
            set_cookie(request, response, BROWSER_COOKIE, self.new_cookie)


def csrf_of(request: Request) -> Csrf:
    cookie = request.cookies.get(COOKIE) or request.cookies.get(BROWSER_COOKIE)
    new = None if cookie else secrets.token_urlsafe(24)
    return Csrf(_token(cookie or new or ""), new)


def check_csrf(request: Request, token: str) -> None:
    expected = csrf_of(request)
    if expected.new_cookie or not hmac.compare_digest(expected.token, token):
        raise ForbiddenError("this form was not issued to this browser; load the page again")


def set_cookie(
    request: Request, response: Response, name: str, value: str, life_s: int | None = None
) -> None:
    """Not readable by scripts, not sent from other sites; over TLS only if the page came over TLS."""
    origin = request.headers.get("origin", "")
    secure = request.url.scheme == "https" or origin.startswith("https://")
    response.set_cookie(name, value, max_age=life_s, httponly=True, samesite="lax", secure=secure, path="/")


def _token(secret: str) -> str:
    return hmac.new(secret.encode(), b"asap-csrf", hashlib.sha256).hexdigest()


NAVIGATION = (
    ("/", "Sessions", ("/sessions", "/topology", "/trace")),
    ("/what-if", "What if", ()),
    ("/compare", "Compare", ()),
    ("/knowledge", "Knowledge", ()),
    ("/fleet", "Nightly", ("/schedules",)),
    ("/hardware", "Hardware", ("/clusters",)),
    ("/accuracy", "Accuracy", ()),
)
"""Address, name, and other paths under the same entry."""
FILTERS = ("age", "ago", "bytes_of", "format_value", "humanize", "instant", "stamp")


def page(
    request: Request, template: str, caller: Caller | None, status: int = 200, **content: object
) -> HTMLResponse:
    """`caller` is None on the login page and on error pages."""
    csrf = csrf_of(request)
    response = HTMLResponse(render(template, request.url.path, caller, csrf.token, **content), status)
    csrf.set_on(request, response)
    return response


def render(template: str, path: str, caller: Caller | None, csrf: str, **content: object) -> str:
    frame = {
        "path": path,
        "caller": caller,
        "signed_in": caller is not None and caller is not LOCAL,
        "csrf": csrf,
        "navigation": NAVIGATION,
        "version": __version__,
        "terms": text,
    }
    return _environment().get_template(f"{template}.html.jinja").render(frame, **content)


@cache
def _environment() -> Environment:
    environment = html_environment("service.web")
    environment.filters |= {name: getattr(text, name) for name in FILTERS}
    environment.filters |= {"verbatim": _verbatim, "tojson_plain": _as_json}
    environment.globals["asset"] = address_of
    return environment


def _verbatim(value: object) -> Markup:
    """Text with its line breaks; what does not print (bidirectional marks too) is spelled out."""
    lines = str(value).replace("\t", "    ").split("\n")
    return Markup("\n").join(escape("".join(map(_visible, line))) for line in lines)


def _as_json(value: object) -> str:
    """For people to read; `verbatim` escapes it."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def _visible(letter: str) -> str:
    return letter if letter.isprintable() else letter.encode("unicode_escape").decode()


MEDIA_TYPE = "application/json"
GZIP_LEVEL = 5


def figure_answer(request: Request, figure: Mapping[str, object]) -> Response:
    body = json.dumps(figure, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    if len(body) < MIN_GZIP_BYTES or "gzip" not in request.headers.get("accept-encoding", ""):
        return Response(body, media_type=MEDIA_TYPE)
    headers = {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    return Response(gzip.compress(body, GZIP_LEVEL, mtime=0), media_type=MEDIA_TYPE, headers=headers)


log = logging.getLogger("asap.web")
ERRORS = (AsapError, HTTPException, RequestValidationError)
NOT_PAGES = ("/v1/", "/healthz", "/readyz", "/metrics", "/openapi.json")

Handler = Callable[[Request, Exception], Awaitable[Response]]


class PageRoute(StrictRoute):
    """Unexpected errors become a page too, and are logged."""

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
                problem = unexpected().model_dump() | {"request_id": request_id.get()}
                return page(request, "error", None, 500, problem=problem)

        return answer


def add_error_pages(app: FastAPI) -> None:
    """Wraps the API's handlers, which describe what is wrong."""
    for kind in ERRORS:
        app.add_exception_handler(kind, _as_page(cast("Handler", app.exception_handlers[kind])))


def _as_page(handler: Handler) -> Handler:
    async def show(request: Request, error: Exception) -> Response:
        answer = await handler(request, error)
        if not is_page(request):
            return answer
        if answer.status_code == 401 and request.method == "GET":
            return RedirectResponse(f"/login?next={quote(_here(request), safe='')}", 303)
        problem = {"detail": "", "request_id": None, **json.loads(bytes(answer.body))}
        response = page(request, "error", None, answer.status_code, problem=problem)
        for name in ("Retry-After", "Allow"):
            if name in answer.headers:
                response.headers[name] = answer.headers[name]
        return response

    return show


def is_page(request: Request) -> bool:
    path = request.url.path
    return "text/html" in request.headers.get("accept", "") and not path.startswith(NOT_PAGES)


def _here(request: Request) -> str:
    query = request.url.query
    return f"{request.url.path}?{query}" if query else request.url.path
