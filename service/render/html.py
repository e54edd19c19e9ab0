"""The report of a session as one HTML page without script or external files."""

import base64
import hashlib
from collections.abc import Callable
from functools import cache
from importlib.resources import files

from jinja2 import BaseLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from graph.report import Report
from service.render import terms, text
from service.render.bars import report_charts
from service.render.trials import COLUMNS
from service.render.view import RawJson, view_of

TEMPLATE = "report.html.jinja"
FILTERS = (
    "address",
    "beside_address",
    "count",
    "gib",
    "percent",
    "seconds",
    "sentence",
    "times",
    "format_value",
)


def html_report(request: RawJson, report: Report) -> str:
    """The whole page; all text from elsewhere is escaped."""
    view = view_of(request, report)
    return (
        _environment()
        .get_template(TEMPLATE)
        .render(
            view=view,
            report=report,
            figures=report_charts(view),
            terms=terms,
            trial_columns=COLUMNS,
            style=Markup(stylesheet()),
            policy=content_security_policy(),
        )
    )


@cache
def stylesheet() -> str:
    return files("service.render").joinpath("templates/report.css").read_text("utf-8").strip()


def content_security_policy() -> str:
    """Allows the page's own stylesheet and nothing else; servers send it as a header too."""
    digest = base64.b64encode(hashlib.sha256(stylesheet().encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


@cache
def _environment() -> Environment:
    return make_environment(PackageLoader("service.render"))


def make_environment(loader: BaseLoader) -> Environment:
    """Templates whose values print as one escaped line, unless one of our filters returns Markup."""
    environment = base_environment(loader, _printable, keep_trailing_newline=True)
    environment.filters |= {"prose": prose, "place": _place}
    return environment


def base_environment(
    loader: BaseLoader, finalize: Callable[[object], object], *, keep_trailing_newline: bool = False
) -> Environment:
    """What templates of every format share; `finalize` makes a value safe to print."""
    environment = Environment(
        loader=loader,
        autoescape=True,
        finalize=finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=keep_trailing_newline,
    )
    environment.filters |= {name: getattr(text, name) for name in FILTERS}
    return environment


def _printable(value: object) -> object:
    return value if isinstance(value, Markup) else text.plain(value)


def prose(value: object) -> Markup:
    """Text in which `code` is set as code."""
    parts = (
        Markup("<code>{}</code>").format(piece) if is_code else escape(piece)
        for is_code, piece in text.pieces(value)
    )
    return Markup("").join(parts)


def _place(percentage: float) -> str:
    """A position or width inside a figure."""
    return f"{percentage:.3f}%"
