"""What people type is a promise: a change here is a change of the contract, made on purpose."""

import json
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path

import pytest

from service.cli.parser import COMMANDS, command_parser, load_command, top_level_parser

REPO = Path(__file__).resolve().parents[2]
HEAVY = {"numpy", "pydantic", "scipy", "rich", "msgspec", "isal", "torch"}
AGENTS = {"langgraph", "langchain_core", "chromadb", "jinja2"}
"""What only a session needs."""


def test_the_subcommands_are_these() -> None:
    assert " ".join(COMMANDS) == (
        "predict optimize where explain constants hardware diagnose calibrate probe import-runs runs profile "
        "dry-run export patch import kb serve sessions ask keys retention nightly schedule doctor mcp"
    )


def all_options(parser: ArgumentParser) -> set[str]:
    """The options of a parser and of the parsers under it (`asap hardware list`, `asap hardware show`)."""
    inner = [
        item
        for action in parser._actions
        if isinstance(action.choices, dict)
        for item in action.choices.values()
    ]
    own = {option for action in parser._actions for option in action.option_strings}
    return own.union(*(all_options(item) for item in inner))


@pytest.mark.parametrize("name", COMMANDS)
def test_each_subcommand_has_its_help_and_speaks_json(name: str) -> None:
    module = load_command(name)
    parser = command_parser(name, module)
    assert module.HELP.strip() in parser.format_help()
    assert "--json" in all_options(parser)


def modules_after(*words: str) -> set[str]:
    """The top-level modules that are loaded once `asap` has answered these words."""
    script = (
        "import json, sys; from service.cli.main import main; main(sys.argv[1:]); "
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})), file=sys.stderr)"
    )
    command = [sys.executable, "-c", script, *words]
    result = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=True)
    return set(json.loads(result.stderr.splitlines()[-1]))


def test_the_options_before_a_subcommand_and_of_optimize_are_these() -> None:
    assert all_options(top_level_parser()) == {"-h", "--help", "--version", "--debug", "--server"}
    optimize = command_parser("optimize", load_command("optimize"))
    own = {"-h", "--help", "--debug", "--json", "--format", "--session", "--events", "--server"}
    own |= {"--calibration", "--export", "--out", "--save"}
    of_a_model = {"--devices", "--framework", "--seq-len", "--global-batch-size", "--precision"}
    of_a_model |= {"--model", "--micro-batch-size", "--vocab-size"}
    of_a_model |= {"--tokens", "--price", "--failures", "--checkpoint-s"}
    assert all_options(optimize) == own | of_a_model


@pytest.mark.parametrize(
    "words",
    [["--help"], ["--version"], [], ["unknown"], ["optimize", "--help"], ["optimize", "absent.json"]],
)
def test_asap_answers_without_loading_anything_heavy_that_it_does_not_need(words: list[str]) -> None:
    loaded = modules_after(*words)
    assert "service" in loaded
    assert loaded & (HEAVY | AGENTS) == set()


def test_bad_input_is_reported_before_agents_are_loaded(tmp_path: Path) -> None:
    (tmp_path / "wrong.json").write_text('{"model": {}}')
    loaded = modules_after("optimize", str(tmp_path / "wrong.json"))
    assert "numpy" in loaded
    assert loaded & AGENTS == set()
