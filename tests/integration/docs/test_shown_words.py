"""What the pages show besides commands to run: data, and names in running text that must exist."""

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.cli.parser import COMMANDS, command_parser, load_command
from service.settings import PREFIX, Settings
from tests.architecture.test_public_options import all_options
from tests.integration.docs.pages import blocks, fenced_blocks, pages
from tools.kb.seed import parse_playbook

REPO = Path(__file__).resolve().parents[3]
READ: dict[str, Callable[[str], Any]] = {"json": json.loads, "toml": tomllib.loads, "yaml": yaml.safe_load}
DRAWN = {"mermaid"}
FOLLOWED = {"py", "jinja"}
"""Changes of the repo, made and used by test_extend_page.py."""
SPAN = re.compile(r"`([^`]+)`")
PATH = re.compile(
    r"(?:asap|service|graph|tools|kb_seed|tests|examples|deploy|docs|benchmarks|scripts)/[\w./-]+"
)
PLACEHOLDER = "NAME"
TARGETS = set(re.findall(r"^([a-z-]+):.*## ", (REPO / "Makefile").read_text(), re.MULTILINE))
SETTINGS = {PREFIX + name.upper() for name in Settings.model_fields} | {"ASAP_POSTGRES_PASSWORD"}
"""The last one is docker-compose.yml's own."""
PAGES = [
    pytest.param(page, id=page.stem)
    for page in [*pages(REPO), REPO / "ARCHITECTURE.md", REPO / "CHANGELOG.md"]
]
OF_OTHERS = {"peers"}
"""Pages whose paths are those of other projects."""


def spans(page: Path) -> list[str]:
    """What stands in back quotes outside of fenced blocks."""
    text = re.sub(r"^\s*```.*?^\s*```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [" ".join(span.split()) for span in SPAN.findall(text)]


def test_blocks_commands_settings_and_files_are_found_at_all() -> None:
    """Of each kind that is judged below, on one page or another: of none, nothing could be wrong."""
    shown = pages(REPO)
    kinds = {block.kind for page in shown for block in fenced_blocks(page.read_text())}
    named = [span for page in shown for span in spans(page)]
    assert {*READ, *DRAWN, "sh", "console", "python"} <= kinds
    assert {"make", "asap"} <= {words[0] for words in map(str.split, named) if len(words) > 1}
    assert any(PATH.fullmatch(span) for span in named)
    assert any(settings_in(page) for page in shown)


def settings_in(page: Path) -> set[str]:
    return set(re.findall(rf"{PREFIX}[A-Z_]*[A-Z](?!\w|\*)", page.read_text()))


@pytest.mark.parametrize("page", [page for page in PAGES if page.id != "ARCHITECTURE"])
def test_every_block_is_run_read_or_says_why_not(page: Path) -> None:
    commands = blocks(page.read_text())
    for block in fenced_blocks(page.read_text()):
        if block.kind in READ:
            assert READ[block.kind](block.text), f"line {block.line}"
        else:
            assert block in commands or block.reason or block.kind in DRAWN | FOLLOWED, f"line {block.line}"


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_running_text_exist(page: Path) -> None:
    commands = [words for words in (span.split() for span in spans(page)) if len(words) > 1]
    assert [words for words in commands if words[0] == "make" and words[1] not in TARGETS] == []
    assert [words for words in commands if words[0] == "asap" and not is_taken(words[1], words[2:])] == []


def is_taken(name: str, words: list[str]) -> bool:
    if name.startswith("-") or name == "COMMAND":
        return True
    return name in COMMANDS and options_of(words) <= all_options(command_parser(name, load_command(name)))


def options_of(words: list[str]) -> set[str]:
    """Those before `--`, after which another program's begin."""
    own = words[: words.index("--")] if "--" in words else words
    return {word.partition("=")[0] for word in own if word.startswith("--")}


@pytest.mark.parametrize("page", PAGES)
def test_settings_that_are_named_exist(page: Path) -> None:
    assert settings_in(page) - SETTINGS == set()


@pytest.mark.parametrize("page", [page for page in PAGES if page.id not in OF_OTHERS])
def test_files_that_are_named_exist(page: Path) -> None:
    named = [span for span in spans(page) if PATH.fullmatch(span) and PLACEHOLDER not in span]
    assert [path for path in named if not (REPO / path).exists()] == []


def test_the_playbook_that_is_shown_would_be_taken() -> None:
    page = (REPO / "docs/extend.md").read_text()
    (shown,) = [tomllib.loads(block.text) for block in fenced_blocks(page) if block.kind == "toml"]
    assert shown["playbook"]
    for playbook in shown["playbook"]:
        assert parse_playbook("overlap", playbook).id == playbook["id"]
