"""The report as Markdown (GitHub's), for chat and mail too."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader

from service.nightly.report import words
from service.report.markdown import make_environment, tidied

Data = Mapping[str, Any]


def markdown_overview(report: Data) -> str:
    """What came from elsewhere cannot become a heading, a link, a table or HTML."""
    return _page("overview.md.jinja", report=report)


def markdown_workload(report: Data, said: Data) -> str:
    return _page("workload.md.jinja", report=report, said=said)


def _page(template: str, **content: object) -> str:
    return tidied(_environment().get_template(template).render(words=words, **content))


@cache
def _environment() -> Environment:
    return make_environment(PackageLoader("service.nightly"))
