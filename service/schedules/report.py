"""A night's report: as Markdown, as HTML pages without script, as files in a folder."""

import os
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

from jinja2 import Environment
from markupsafe import Markup

from service.render import nightly as words
from service.render.report import content_security_policy, html_environment, render_markdown, stylesheet
from service.render.text import sentence
from service.render.trends import HEIGHT, LEFT, RIGHT, TOP, WIDTH, plots_of, spark_points
from tools.errors import InputError
from tools.nightly.result import NightReport, NightResult

INDEX = "index.html"
PAGES = "workloads"
TRENDS = "nightly.css"
SHAPE = {"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": WIDTH - RIGHT, "top": TOP}
Links = Callable[[str], str | None]
"""From the name of a workload to its page."""
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


def markdown_overview(report: NightReport) -> str:
    """A quiet night is one line: it is read every morning."""
    if report.is_uneventful:
        return f"{sentence(words.in_one_line(report))}\n"
    return render_markdown("overview.md.jinja", report=report, words=words)


def markdown_workload(result: NightResult, at: float) -> str:
    return render_markdown("workload.md.jinja", result=result, at=at, words=words)


def html_overview(report: NightReport, links: Links = lambda _: None, *, only_main: bool = False) -> str:
    """A whole document, or only what stands in its `main`, for a page with another frame."""
    plots = {result.name: plots_of(result) for result in report.workloads if result.is_changed}
    first = {name: own[0] for name, own in plots.items() if own}
    return _render("overview.html.jinja", only_main, report=report, links=links, plots=first)


def html_workload(
    result: NightResult, at: float, title: str, overview: str | None = None, *, only_main: bool = False
) -> str:
    """`title` and `overview` are the name and the address of the page that lists all workloads."""
    content = {"result": result, "at": at, "title": title, "plots": plots_of(result), "overview": overview}
    return _render("workload.html.jinja", only_main, **content)


def _render(name: str, only_main: bool, **content: object) -> str:
    template = _html_environment().get_template(name)
    frame = {"words": words, "shape": SHAPE, "style": Markup(stylesheet(TRENDS)), "policy": page_policy()}
    if not only_main:
        return template.render(frame, **content)
    return Markup("").join(map(Markup, template.blocks["main"](template.new_context({**frame, **content}))))


@cache
def _html_environment() -> Environment:
    environment = html_environment()
    environment.filters |= {"spark": spark_points, "class": page_name}
    return environment


def page_policy() -> str:
    """What servers send as the header Content-Security-Policy with these pages."""
    return content_security_policy(stylesheet(TRENDS))


def page_name(workload: str) -> str:
    """A file's name; names of workloads are checked, those of old records may be anything."""
    return _UNSAFE.sub("_", workload).lstrip(".") or "_"


def write_report(report: NightReport, folder: Path) -> Path:
    """Leaves other files of the folder alone; returns the page to open, which is written last."""
    documents = {"report.md": markdown_overview(report), "report.json": report.model_dump_json() + "\n"}
    for result in report.workloads:
        page = f"{PAGES}/{page_name(result.name)}"
        documents[f"{page}.html"] = html_workload(result, report.at, report.title, f"../{INDEX}")
        documents[f"{page}.md"] = markdown_workload(result, report.at)
    documents[INDEX] = html_overview(report, lambda name: f"{PAGES}/{page_name(name)}.html")
    try:
        (folder / PAGES).mkdir(parents=True, exist_ok=True)
        for name, text in documents.items():
            path = folder / name
            temporary = path.with_name(f".{path.name}.{os.getpid()}")
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(path)
    except OSError as error:
        raise InputError("report", str(folder), f"cannot be written: {error.strerror or error}") from None
    return folder / INDEX


def find_page(folder: Path) -> Path | None:
    """The page of an earlier report in the folder."""
    return page if (page := folder / INDEX).is_file() else None
