"""A night's report as Markdown, as HTML pages without script, and as files in a folder."""

import base64
import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from service.render import terms as words
from service.render.html import make_environment as make_environment_html
from service.render.html import stylesheet as base_stylesheet
from service.render.markdown import collapse_blank_lines, make_environment
from service.render.trends import HEIGHT, LEFT, RIGHT, TOP, WIDTH, plots_of, spark_points
from tools.errors import InputError

Data = Mapping[str, Any]


def markdown_overview(report: Data) -> str:
    """What came from elsewhere cannot become a heading, a link, a table or HTML."""
    return _page("overview.md.jinja", report=report)


def markdown_workload(report: Data, said: Data) -> str:
    return _page("workload.md.jinja", report=report, said=said)


def _page(template: str, **content: object) -> str:
    return collapse_blank_lines(_environment().get_template(template).render(words=words, **content))


@cache
def _environment() -> Environment:
    return make_environment(PackageLoader("service.render"))


Links = Callable[[str], str | None]
"""From the name of a workload to its page."""
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


def page_name(workload: str) -> str:
    """A file's name; names of workloads are checked, those of old records may be anything."""
    return _UNSAFE.sub("_", workload).lstrip(".") or "_"


def html_overview(report: Data, links: Links = lambda _: None) -> str:
    return _page_html("overview.html.jinja", report=report, links=links)


def html_workload(report: Data, said: Data, overview: str | None = None) -> str:
    return _page_html(
        "workload.html.jinja", report=report, said=said, plots=plots_of(said), overview=overview
    )


def _page_html(template: str, **content: object) -> str:
    shape = {"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": WIDTH - RIGHT, "top": TOP}
    return (
        _environment_html()
        .get_template(template)
        .render(
            words=words, shape=shape, style=Markup(stylesheet()), policy=content_security_policy(), **content
        )
    )


@cache
def stylesheet() -> str:
    own = files("service.render").joinpath("templates/nightly.css").read_text("utf-8").strip()
    return f"{base_stylesheet()}\n{own}"


def content_security_policy() -> str:
    """What the pages need, which is nothing but their own stylesheet; servers send it as a header too."""
    digest = base64.b64encode(hashlib.sha256(stylesheet().encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


@cache
def _environment_html() -> Environment:
    environment = make_environment_html(PackageLoader("service.render"))
    environment.filters |= {"spark": spark_points, "class": page_name}
    return environment


INDEX = "index.html"
PAGES = "workloads"


def write_report(report: Mapping[str, Any], folder: Path) -> Path:
    """Leaves other files of the folder alone; gives the page to open, which is written last."""
    try:
        (folder / PAGES).mkdir(parents=True, exist_ok=True)
        for name, text in _documents(report).items():
            _write(folder / name, text)
    except OSError as error:
        raise InputError("report", str(folder), f"cannot be written: {error.strerror or error}") from None
    return folder / INDEX


def _documents(report: Mapping[str, Any]) -> dict[str, str]:
    documents = {
        "report.md": markdown_overview(report),
        "report.json": json.dumps(report, allow_nan=False) + "\n",
    }
    for said in report["workloads"]:
        name = page_name(said["name"])
        documents[f"{PAGES}/{name}.html"] = html_workload(report, said, f"../{INDEX}")
        documents[f"{PAGES}/{name}.md"] = markdown_workload(report, said)
    return {**documents, INDEX: html_overview(report, lambda name: f"{PAGES}/{page_name(name)}.html")}


def _write(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)
