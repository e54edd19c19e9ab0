"""A night's report as Markdown, as HTML pages without script, and as files in a folder."""

import base64
import hashlib
import os
import re
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from service.render import html, markdown
from service.render import nightly as words
from service.render.trends import HEIGHT, LEFT, RIGHT, TOP, WIDTH, plots_of, spark_points
from tools.errors import InputError
from tools.nightly.result import NightReport, NightResult

INDEX = "index.html"
PAGES = "workloads"
SHAPE = {"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": WIDTH - RIGHT, "top": TOP}
Links = Callable[[str], str | None]
"""From the name of a workload to its page."""
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


def markdown_overview(report: NightReport) -> str:
    """Text from elsewhere cannot become a heading, a link, a table or HTML."""
    return _render_markdown("overview.md.jinja", report=report)


def markdown_workload(result: NightResult, at: float) -> str:
    return _render_markdown("workload.md.jinja", result=result, at=at)


def _render_markdown(template: str, **content: object) -> str:
    return markdown.collapse_blank_lines(
        _markdown_environment().get_template(template).render(words=words, **content)
    )


@cache
def _markdown_environment() -> Environment:
    return markdown.make_environment(PackageLoader("service.render"))


def html_overview(report: NightReport, links: Links = lambda _: None) -> str:
    plots = {
        result.name: plots_of(result)[0]
        for result in report.workloads
        if result.is_changed and plots_of(result)
    }
    return _render_html("overview.html.jinja", report=report, links=links, plots=plots)


def html_workload(result: NightResult, at: float, title: str, overview: str | None = None) -> str:
    """`title` and `overview` are the name and the address of the page that lists all workloads."""
    plots = plots_of(result)
    return _render_html(
        "workload.html.jinja", result=result, at=at, title=title, plots=plots, overview=overview
    )


def _render_html(template: str, **content: object) -> str:
    style, policy = Markup(stylesheet()), content_security_policy()
    page = _html_environment().get_template(template)
    return page.render(words=words, shape=SHAPE, style=style, policy=policy, **content)


@cache
def _html_environment() -> Environment:
    environment = html.make_environment(PackageLoader("service.render"))
    environment.filters |= {"spark": spark_points, "class": page_name}
    return environment


@cache
def stylesheet() -> str:
    own = files("service.render").joinpath("templates/nightly.css").read_text("utf-8").strip()
    return f"{html.stylesheet()}\n{own}"


def content_security_policy() -> str:
    """What the pages need, which is nothing but their own stylesheet; servers send it as a header too."""
    digest = base64.b64encode(hashlib.sha256(stylesheet().encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def page_name(workload: str) -> str:
    """A file's name; names of workloads are checked, those of old records may be anything."""
    return _UNSAFE.sub("_", workload).lstrip(".") or "_"


def write_report(report: NightReport, folder: Path) -> Path:
    """Leaves other files of the folder alone; returns the page to open, which is written last."""
    try:
        (folder / PAGES).mkdir(parents=True, exist_ok=True)
        for name, text in _documents(report).items():
            _write(folder / name, text)
    except OSError as error:
        raise InputError("report", str(folder), f"cannot be written: {error.strerror or error}") from None
    return folder / INDEX


def find_page(folder: Path) -> Path | None:
    """The page of an earlier report in the folder."""
    return page if (page := folder / INDEX).is_file() else None


def _documents(report: NightReport) -> dict[str, str]:
    documents = {
        "report.md": markdown_overview(report),
        "report.json": report.model_dump_json() + "\n",
    }
    for result in report.workloads:
        page = f"{PAGES}/{page_name(result.name)}"
        documents[f"{page}.html"] = html_workload(result, report.at, report.title, f"../{INDEX}")
        documents[f"{page}.md"] = markdown_workload(result, report.at)
    return {**documents, INDEX: html_overview(report, lambda name: f"{PAGES}/{page_name(name)}.html")}


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
