"""The pages: one over all workloads, one for each. No script, no other file; foreign text stays text."""

import base64
import hashlib
import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from service.nightly.report import words
from service.nightly.report.figures import HEIGHT, LEFT, RIGHT, TOP, WIDTH, plots_of, spark_points
from service.report.html import make_environment
from service.report.html import stylesheet as base_stylesheet

Data = Mapping[str, Any]
Links = Callable[[str], str | None]
"""From the name of a workload to its page."""
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


def page_name(workload: str) -> str:
    """A file's name; names of workloads are checked, those of old records may be anything."""
    return _UNSAFE.sub("_", workload).lstrip(".") or "_"


def html_overview(report: Data, links: Links = lambda _: None) -> str:
    return _page("overview.html.jinja", report=report, links=links)


def html_workload(report: Data, said: Data, overview: str | None = None) -> str:
    return _page("workload.html.jinja", report=report, said=said, plots=plots_of(said), overview=overview)


def _page(template: str, **content: object) -> str:
    shape = {"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": WIDTH - RIGHT, "top": TOP}
    return (
        _environment()
        .get_template(template)
        .render(
            words=words, shape=shape, style=Markup(stylesheet()), policy=content_security_policy(), **content
        )
    )


@cache
def stylesheet() -> str:
    own = files("service.nightly").joinpath("templates/nightly.css").read_text("utf-8").strip()
    return f"{base_stylesheet()}\n{own}"


def content_security_policy() -> str:
    """What the pages need, which is nothing but their own stylesheet; servers send it as a header too."""
    digest = base64.b64encode(hashlib.sha256(stylesheet().encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


@cache
def _environment() -> Environment:
    environment = make_environment(PackageLoader("service.nightly"))
    environment.filters |= {"spark": spark_points, "class": page_name}
    return environment
