"""Writes a night's report as files: a page over all workloads, one for each, Markdown and JSON.

Each is written beside and renamed, so that a reader never finds half a page.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from service.nightly.report.html import html_overview, html_workload, page_name
from service.nightly.report.markdown import markdown_overview, markdown_workload
from tools.errors import InputError

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
