"""Writes build/site-pages, the pages of the documentation site: the repo's, and references of the product.

    python -m scripts.site_pages && mkdocs build --strict -f docs/mkdocs.yml     (make docs)

The folders are those of the repo, so that links between pages and to examples hold as they are.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from scripts.make_client import served_document
from service.cli.parser import COMMANDS, command_parser, load_command
from service.web.docs import DescribedOperation, subjects_of

REPO = Path(__file__).resolve().parents[1]
PAGES = REPO / "build" / "site-pages"
WRITTEN = [
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "runs/SOURCES.md",
    "skills/asap/SKILL.md",
]
LINK = re.compile(r"\]\(([^)#\s]+)")
PYTHON = """\
# Python reference

[From Python](../docs/python.md) shows what it is for; here is every function and type.

::: asap
    options:
      show_root_heading: false
      show_root_toc_entry: false
      show_source: false
      heading_level: 2
"""


def main() -> None:
    shutil.rmtree(PAGES, ignore_errors=True)
    for page in [*(REPO / name for name in WRITTEN), *sorted((REPO / "docs").glob("*.md"))]:
        for file in [page, *_linked_files(page)]:
            target = PAGES / file.relative_to(REPO)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
    references = PAGES / "reference"
    references.mkdir()
    (references / "rest.md").write_text("\n".join(rest_reference()))
    (references / "commands.md").write_text("\n".join(command_reference()))
    (references / "python.md").write_text(PYTHON)


def _linked_files(page: Path) -> Iterator[Path]:
    for link in LINK.findall(page.read_text()):
        file = (page.parent / link).resolve()
        if file.is_file() and file.is_relative_to(REPO):
            yield file


def rest_reference() -> Iterator[str]:
    document = served_document()
    yield "# REST reference\n"
    yield "Made from the OpenAPI document that a server answers under `/openapi.json`.\n"
    yield document["info"]["description"]
    for subject in subjects_of(document):
        yield f"\n## {subject.name.capitalize()}\n\n{subject.description}"
        for operation in subject.operations:
            yield from _operation(operation)


def _operation(operation: DescribedOperation) -> Iterator[str]:
    yield f"\n### `{operation.method} {operation.path}`\n\n{operation.summary}. {operation.description}"
    if operation.fields:
        yield "\n| field | in | required | |\n| --- | --- | --- | --- |"
    for field in operation.fields:
        words = field.description.replace("|", "\\|").replace("\n", " ")
        yield f"| `{field.name}` | {field.where} | {'yes' if field.required else ''} | {words} |"


def command_reference() -> Iterator[str]:
    yield "# Command reference\n\nWhat `asap COMMAND --help` prints.\n"
    for name in COMMANDS:
        yield f"## asap {name}\n\n```text\n{command_parser(name, load_command(name)).format_help()}```\n"


if __name__ == "__main__":
    main()
