"""The `asap` command as a whole: choosing a subcommand, exit statuses, errors in one line."""

import errno
import json
import os
import re
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

import pytest

from service.cli import predict
from service.cli.main import main
from service.cli.parser import (
    COMMANDS,
    CommandModule,
    command_parser,
    load_command,
    top_level_parser,
)
from tests.unit.service.cli.commands import EXAMPLE, REPO, Asap, Result
from tools.errors import AsapError, DataError, InfeasibleError, InputError
from tools.scenario import parse_scenario

ASAP = "import sys; from service.cli.main import main; sys.exit(main())"


class Subcommand:
    """Ends as it is told: with a status, or by raising."""

    HELP = "ends as it is told"

    def __init__(self, outcome: int | BaseException) -> None:
        self.outcome = outcome

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--count", type=int)

    def run(self, args: Namespace) -> int:
        print(f"count is {args.count}")
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Asap:
    """Calls main() with a subcommand `work` that ends with the given outcome."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def call(*words: str, outcome: int | BaseException = 0) -> Result:
        module: CommandModule = Subcommand(outcome)
        monkeypatch.setattr("service.cli.main.load_command", lambda _: module)
        monkeypatch.setitem(COMMANDS, "work", ("", ""))
        return Result(main(words), *capsys.readouterr())

    return call


def in_shell(script: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", "-c", f'asap() {{ "$PYTHON" -c "{ASAP}" "$@"; }}; {script}']
    environment = {"PYTHON": sys.executable, "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, cwd=REPO, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InputError("plan.tp", 3, "must divide 64"), 2),
        (InfeasibleError("nothing fits in 80 GiB; 128 devices would do"), 3),
        (DataError("calibration.json is missing"), 1),
        (AsapError("something of ours"), 1),
    ],
)
def test_an_error_of_ours_is_one_line_and_its_status(run: Asap, error: AsapError, status: int) -> None:
    result = run("work", outcome=error)
    assert result.status == status
    assert result.err == f"asap: error: {error}\n"


def test_an_unexpected_error_is_one_line_and_its_traceback_is_kept(run: Asap, tmp_path: Path) -> None:
    for name, age_days in (("asap-traceback-old.txt", 8), ("asap-traceback-new.txt", 6), ("other.txt", 8)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, times=(0, time.time() - age_days * 86400))
    before = {*tmp_path.iterdir()}
    result = run("work", outcome=ZeroDivisionError("division by zero"))
    (kept,) = {*tmp_path.iterdir()} - before
    assert before - {*tmp_path.iterdir()} == {tmp_path / "asap-traceback-old.txt"}
    assert result.status == 1
    assert result.err.count("\n") == 1
    assert "unexpected ZeroDivisionError: division by zero" in result.err
    assert str(kept) in result.err
    assert "Traceback" in kept.read_text()


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (PermissionError(errno.EACCES, "No access", "/data/asap.db"), "/data/asap.db: No access"),
        (OSError(errno.ENOSPC, "No space left on device"), "output: No space left on device"),
    ],
)
def test_what_the_file_system_refuses_is_not_a_fault_of_ours(
    run: Asap, tmp_path: Path, error: OSError, line: str
) -> None:
    assert run("work", outcome=error) == Result(1, "count is None\n", f"asap: error: {line}\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [("--debug", "work"), ("work", "--debug")])
@pytest.mark.parametrize("error", [ValueError("odd"), InputError("plan.tp", 0, "must be positive")])
def test_debug_shows_the_traceback_on_either_side_of_the_command(
    run: Asap, tmp_path: Path, words: tuple[str, ...], error: Exception
) -> None:
    result = run(*words, outcome=error)
    assert result.err.startswith("Traceback")
    assert result.err.splitlines()[-1].startswith("asap: error: ")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_ends_with_the_status_a_shell_expects(run: Asap) -> None:
    assert run("work", outcome=KeyboardInterrupt()) == Result(
        130, "count is None\n", "asap: error: interrupted\n"
    )


def test_quoted_input_cannot_break_the_line_or_colour_the_terminal(run: Asap) -> None:
    result = run("work", outcome=AsapError("a\nb\x1b[31m\u2028c é"))
    assert result.err == "asap: error: a\\nb\\x1b[31m\\u2028c é\n"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "no command given"),
        (("wrok",), "did you mean work?"),
        (("zzz",), "choose one of predict"),
        (("--bogus",), "--bogus"),
        (("work", "--bogus"), "--bogus"),
        (("work", "--count", "many"), "--count"),
        (("work", "--cou", "5"), "--cou"),
    ],
)
def test_a_wrong_command_line_is_one_line_that_points_to_help(
    run: Asap, words: tuple[str, ...], reason: str
) -> None:
    result = run(*words)
    assert result.refused
    assert result.err.startswith("asap: error: ")
    assert reason in result.err
    assert "--help" in result.err


@pytest.mark.parametrize("words", [("predict",), ("optimize",), ("explain", "--plan", "tp=2")])
def test_a_dash_reads_standard_input(asap: Asap, words: tuple[str, ...]) -> None:
    assert asap(*words, "-", "--json", stdin=EXAMPLE.read_bytes()).answer


def test_a_reader_that_goes_away_is_not_an_error() -> None:
    result = in_shell("(sleep 0.5; asap --help) | true; echo ${PIPESTATUS[0]}")
    assert result.stderr == ""
    assert result.stdout == "141\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_a_full_disk_is_one_line_and_a_failure() -> None:
    result = in_shell("asap --help > /dev/full")
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "No space left" in result.stderr


def test_the_scenario_that_the_help_shows_is_one() -> None:
    shown = re.search(r"\{\"model\".*?\}\}\n", predict.HELP, re.DOTALL)
    assert shown
    assert parse_scenario(json.loads(shown.group())).plan


def actions_of(parser: ArgumentParser) -> list[ArgumentParser]:
    return [
        inner
        for action in parser._actions
        if isinstance(action.choices, dict)
        for inner in action.choices.values()
    ]


@pytest.mark.parametrize("name", COMMANDS)
def test_files_that_the_help_names_are_there_and_actions_are_described(name: str) -> None:
    parser = command_parser(name, load_command(name))
    texts = [parser.format_help(), top_level_parser().format_help()]
    for action in actions_of(parser):
        assert action.description
        texts.append(action.format_help())
    for path in set(re.findall(r"examples/[\w./-]+", "\n".join(texts))):
        assert (REPO / path).exists(), path
