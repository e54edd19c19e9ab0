"""From a template and plain data to a page; everything printed is escaped and made one line, or verbatim."""

import json
from functools import cache

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import ChoiceLoader, Environment, PackageLoader
from markupsafe import Markup, escape

from service import __version__
from service.auth.caller import LOCAL, Caller
from service.report import terms
from service.report.html import make_environment
from service.web.assets import address_of
from service.web.csrf import csrf_of
from service.web.views import units

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
        ChoiceLoader([PackageLoader("service.web"), PackageLoader("service.report")])
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
