"""The report as Markdown (GitHub's), and short texts of it for chat and mail."""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from service.nightly.report import words
from service.report import text
from service.report.markdown import escape_markdown

Data = Mapping[str, Any]


def markdown_overview(report: Data) -> str:
    """What came from elsewhere cannot become a heading, a link, a table or HTML."""
    return _page("overview.md.jinja", report=report)


def markdown_workload(report: Data, said: Data) -> str:
    return _page("workload.md.jinja", report=report, said=said)


def _page(template: str, **content: object) -> str:
    page = _environment().get_template(template).render(words=words, **content)
    return re.sub(r"\n{3,}", "\n\n", page).strip() + "\n"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("service.nightly"),
        # Markup is left alone and all else escaped, here for Markdown, by `finalize`.
        autoescape=True,
        finalize=_escaped,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {name: getattr(text, name) for name in ("percent", "seconds", "sentence")}
    environment.filters |= {"cell": _cell}
    return environment


def _escaped(value: object) -> Markup:
    return value if isinstance(value, Markup) else Markup(escape_markdown(value))


def _cell(value: object) -> Markup:
    """A bar inside code would still end the cell of a table."""
    return Markup(escape_markdown(str(value).replace("`", "'")))
