"""Pages from templates, and the data of their figures as compressed JSON."""

import gzip
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated

from fastapi import Depends, Request, Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment
from markupsafe import Markup, escape

from service import __version__
from service.access.auth import Caller, Scope
from service.http.auth import caller_with
from service.http.deps import AppDep
from service.http.state import AppState
from service.render import text
from service.render.report import html_environment
from service.web.assets import MIN_GZIP_BYTES, address_of, takes_gzip
from service.web.csrf import csrf_of

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
FILTERS = ("age", "ago", "bytes_of", "format_value", "humanize", "stamp")
GZIP_LEVEL = 5
GZIPPED = {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
OCTETS = "application/octet-stream"


def page(
    request: Request, template: str, caller: Caller | None, status: int = 200, **content: object
) -> HTMLResponse:
    """`caller` is None on the login page and on error pages."""
    csrf = csrf_of(request)
    frame = {
        "path": request.url.path,
        "caller": caller,
        "signed_in": caller is not None and not caller.is_local,
        "csrf": csrf.token,
        "navigation": NAVIGATION,
        "version": __version__,
        "terms": text,
    }
    rendered = _environment().get_template(f"{template}.html.jinja").render(frame, **content)
    response = HTMLResponse(rendered, status)
    csrf.set_on(request, response)
    return response


@dataclass(frozen=True)
class Page:
    """A browser's request: called with the name of a template and its content, it answers with the page."""

    request: Request
    app: AppState
    caller: Caller

    def __call__(self, template: str, status: int = 200, **content: object) -> Response:
        return page(self.request, template, self.caller, status, **content)

    def figure(self, figure: Mapping[str, object]) -> Response:
        """The data of a figure, compressed where the browser takes it."""
        body = json.dumps(figure, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        if len(body) < MIN_GZIP_BYTES or not takes_gzip(self.request):
            return Response(body, media_type="application/json")
        return Response(
            gzip.compress(body, GZIP_LEVEL, mtime=0), headers=GZIPPED, media_type="application/json"
        )

    def packed(self, data: bytes) -> Response:
        """What is kept compressed, as it is where the browser takes it."""
        if not takes_gzip(self.request):
            return Response(gzip.decompress(data), media_type=OCTETS)
        return Response(data, headers=GZIPPED, media_type=OCTETS)


def _page_for(scope: Scope) -> Callable[..., Awaitable[Page]]:
    async def get(
        request: Request, app: AppDep, caller: Annotated[Caller, Depends(caller_with(scope))]
    ) -> Page:
        return Page(request, app, caller)

    return get


ReaderPage = Annotated[Page, Depends(_page_for("read"))]
SubmitterPage = Annotated[Page, Depends(_page_for("submit"))]
ApproverPage = Annotated[Page, Depends(_page_for("approve"))]


@cache
def _environment() -> Environment:
    def verbatim(value: object) -> Markup:
        """Text with its line breaks; what does not print (bidirectional marks too) is spelled out."""
        lines = str(value).replace("\t", "    ").split("\n")
        return Markup("\n").join(
            escape("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line))
            for line in lines
        )

    def as_json(value: object) -> str:
        """For people to read; `verbatim` escapes it."""
        return json.dumps(value, indent=2, ensure_ascii=False, default=str)

    environment = html_environment("service.web")
    environment.filters |= {name: getattr(text, name) for name in FILTERS}
    environment.filters |= {"verbatim": verbatim, "tojson_plain": as_json}
    environment.globals["asset"] = address_of
    return environment
