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
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, cast
from urllib.parse import quote

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from jinja2 import ChoiceLoader, Environment, PackageLoader
from markupsafe import Markup, escape
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse

from service import __version__
from service.api.deps import StrictRoute
from service.api.errors import unexpected
from service.auth import COOKIE, LOCAL, Caller
from service.errors import ForbiddenError, NotFoundError
from service.logs import request_id
from service.render import terms
from service.render import text as units
from service.render.html import make_environment
from service.render.plotly import Figure
from tools.errors import AsapError

PREFIX = "/static"
PLOTLY = "plotly.min.js"
FOREVER = "public, max-age=31536000, immutable"
LEAST_GZIP_BYTES = 1000

router = APIRouter(prefix=PREFIX)


@dataclass(frozen=True)
class Asset:
    body: bytes
    media_type: str

    @property
    def is_long(self) -> bool:
        return len(self.body) >= LEAST_GZIP_BYTES


@cache
def all_assets() -> dict[str, Asset]:
    folder = files("service.web").joinpath("static")
    own = {file.name: file.read_bytes() for file in sorted(folder.iterdir(), key=lambda one: one.name)}
    plotly = files("plotly").joinpath("package_data", PLOTLY).read_bytes()
    return {name: Asset(body, _media_type(name)) for name, body in {**own, PLOTLY: plotly}.items()}


@cache
def digest() -> str:
    found = hashlib.sha256()
    for name, asset in all_assets().items():
        found.update(name.encode() + b"\0" + hashlib.sha256(asset.body).digest())
    return found.hexdigest()[:16]


def address_of(name: str) -> str:
    """Raises KeyError for a file that is not there: a template with a typing mistake must not be served."""
    all_assets()[name]
    return f"{PREFIX}/{digest()}/{name}"


@router.get("/{wanted}/{name}")
def get_asset(wanted: str, name: str, request: Request) -> Response:
    """Of another version, as while a server is replaced: what we have, and not to be kept."""
    asset = all_assets().get(name)
    if asset is None:
        raise NotFoundError("file", name)
    headers = {"Cache-Control": FOREVER if wanted == digest() else "no-cache", "Vary": "Accept-Encoding"}
    if asset.is_long and "gzip" in request.headers.get("accept-encoding", ""):
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
    """To be set where the browser has none yet."""

    def keep(self, request: Request, response: Response) -> None:
        if self.new_cookie:
            set_cookie(request, response, BROWSER_COOKIE, self.new_cookie)


def csrf_of(request: Request) -> Csrf:
    held = request.cookies.get(COOKIE) or request.cookies.get(BROWSER_COOKIE)
    made = None if held else secrets.token_urlsafe(24)
    return Csrf(_token(held or made or ""), made)


def check_csrf(request: Request, given: str) -> None:
    known = csrf_of(request)
    if known.new_cookie or not hmac.compare_digest(known.token, given):
        raise ForbiddenError("this form is not one that this browser was given here; load the page again")


def set_cookie(
    request: Request, response: Response, name: str, value: str, life_s: int | None = None
) -> None:
    """Not readable by scripts, not sent from other sites; over TLS only where the page came over TLS."""
    origin = request.headers.get("origin", "")
    secure = request.url.scheme == "https" or origin.startswith("https://")
    response.set_cookie(name, value, max_age=life_s, httponly=True, samesite="lax", secure=secure, path="/")


def _token(secret: str) -> str:
    return hmac.new(secret.encode(), b"asap-csrf", hashlib.sha256).hexdigest()


NAVIGATION = (
    ("/", "Sessions", ("/sessions",)),
    ("/what-if", "What if", ()),
    ("/compare", "Compare", ()),
    ("/knowledge", "Knowledge", ()),
    ("/fleet", "Nightly", ("/schedules",)),
    ("/hardware", "Hardware", ()),
    ("/accuracy", "Accuracy", ()),
)
"""Address, name, and what else belongs to the page."""
FILTERS = ("age", "ago", "bytes_of", "count", "instant", "stamp", "told", "words")


def page(
    request: Request, template: str, caller: Caller | None, status: int = 200, **content: object
) -> HTMLResponse:
    """`caller` is None where nobody is known: at the door, and on pages about errors."""
    csrf = csrf_of(request)
    response = HTMLResponse(render(template, request.url.path, caller, csrf.token, **content), status)
    csrf.keep(request, response)
    return response


def render(template: str, path: str, caller: Caller | None, csrf: str, **content: object) -> str:
    frame = {
        "path": path,
        "caller": caller,
        "signed_in": caller is not None and caller is not LOCAL,
        "csrf": csrf,
        "navigation": NAVIGATION,
        "version": __version__,
        "terms": terms,
    }
    return _environment().get_template(f"{template}.html.jinja").render(frame, **content)


@cache
def _environment() -> Environment:
    environment = make_environment(
        ChoiceLoader([PackageLoader("service.web"), PackageLoader("service.render")])
    )
    environment.filters |= {name: getattr(units, name) for name in FILTERS}
    environment.filters |= {"verbatim": _verbatim, "tojson_plain": _as_json}
    environment.globals["asset"] = address_of
    return environment


def _verbatim(value: object) -> Markup:
    """Text with its own line ends; what does not print (marks that turn text around, too) is spelled out."""
    lines = str(value).replace("\t", "    ").split("\n")
    return Markup("\n").join(escape("".join(map(_shown, line))) for line in lines)


def _as_json(value: object) -> str:
    """For people to read; `verbatim` escapes it."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def _shown(letter: str) -> str:
    return letter if letter.isprintable() else letter.encode("unicode_escape").decode()


MEDIA_TYPE = "application/json"
LEAST_BYTES = 1000
LEVEL = 5


def figure_answer(request: Request, figure: Figure) -> Response:
    body = json.dumps(figure, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    if len(body) < LEAST_BYTES or "gzip" not in request.headers.get("accept-encoding", ""):
        return Response(body, media_type=MEDIA_TYPE)
    headers = {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    return Response(gzip.compress(body, LEVEL, mtime=0), media_type=MEDIA_TYPE, headers=headers)


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
        app.add_exception_handler(kind, _shown_error_pages(cast("Handler", app.exception_handlers[kind])))


def _shown_error_pages(told: Handler) -> Handler:
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
