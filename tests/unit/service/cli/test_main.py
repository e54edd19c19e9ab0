"""The `asap` command as a whole: choosing a subcommand, exit statuses, errors in one line."""

import errno
import json
import re
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service import __version__
from service.cli import predict
from service.cli.main import main
from service.cli.parser import (
    COMMANDS,
    Command,
    CommandModule,
    command_parser,
    split_at_command,
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
        monkeypatch.setattr(Command, "load", lambda _: module)
        monkeypatch.setitem(COMMANDS, "work", Command("", "", ""))
        return Result(main(words), *capsys.readouterr())

    return call


def in_shell(script: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", "-c", f'asap() {{ "$PYTHON" -c "{ASAP}" "$@"; }}; {script}']
    environment = {"PYTHON": sys.executable, "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, cwd=REPO, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("status", [0, 3])
def test_the_status_of_the_subcommand_is_the_status_of_asap(run: Asap, status: int) -> None:
    assert run("work", "--count", "5", outcome=status) == Result(status, "count is 5\n", "")


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
    result = run("work", outcome=ZeroDivisionError("division by zero"))
    (kept,) = tmp_path.iterdir()
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


def test_an_unexpected_error_points_to_debug_where_no_file_can_be_written(
    run: Asap, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    result = run("work", outcome=ValueError("odd"))
    assert result.err == "asap: error: unexpected ValueError: odd; add --debug for the traceback\n"


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


TRACES = REPO / "examples/traces/ddp-gloo-straggler"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("export", EXAMPLE, "--format", "megatron", "--proposal", "2"), "--proposal: got 2; needs"),
        (("export", EXAMPLE, "--format", "megatron", "--report", "absent"), "--report: got 'absent'"),
        (("diagnose", TRACES, "--workers", "x"), "--workers: must be a whole number of 1 or more"),
        (("diagnose", TRACES, "--workers", "0"), "--workers: must be a whole number of 1 or more"),
        (("diagnose", TRACES, "--scenario", "absent"), "--scenario: got 'absent'"),
        (("diagnose", TRACES, "--compare", "absent"), "--compare: got 'absent'"),
        (("diagnose", TRACES, "--compare", EXAMPLE), "--compare: got"),
        (("predict", "absent"), "FILE: got 'absent'"),
        (("diagnose", TRACES, "--calibration-out", "out.json"), "--calibration-out"),
        (("diagnose", TRACES, "--scenario", b"# no JSON"), "input-3.json line 1"),
        (("predict", EXAMPLE, "--calibration", "absent"), "--calibration: got 'absent'"),
        (("predict", EXAMPLE, "--calibration", {}), "format"),
        (("predict", EXAMPLE, "--calibration", b"nonsense"), "input-3.json line 1"),
        (("predict", EXAMPLE, "--calibration", {"format": "asap-cluster-calibration-1"}), "framework"),
        (("optimize", "absent"), "FILE: got 'absent'"),
        (("optimize",), "FILE"),
        (("import", "-", "--format", "torchtitan", "--device", "h100"), "FILE: got 'no text'"),
        (("import", EXAMPLE, "--format", "huggingface", "--model", "absent"), "--model: got 'absent'"),
    ],
)
def test_the_argument_at_fault_is_named(asap: Asap, words: tuple[object, ...], says: str) -> None:
    result = asap(*words, stdin=b" \n")
    assert result.refused
    assert says in result.err


@pytest.mark.parametrize("words", [("predict",), ("optimize",), ("explain", "--plan", "tp=2")])
def test_a_dash_reads_standard_input(asap: Asap, words: tuple[str, ...]) -> None:
    assert asap(*words, "-", "--json", stdin=EXAMPLE.read_bytes()).answer


def test_help_has_each_command_with_an_example_and_the_statuses(run: Asap) -> None:
    result = run("--help")
    assert (result.status, result.err) == (0, "")
    for name, command in COMMANDS.items():
        assert f"  {name}" in result.out
        assert command.example in result.out
        assert command.summary in result.out
    for status in range(5):
        assert f"\n  {status}  " in result.out


def test_version_is_the_package_s(run: Asap) -> None:
    assert run("--version") == Result(0, f"asap {__version__}\n", "")


@given(st.lists(st.sampled_from(["--debug", "-h", "-", "--", "predict", "x"])))
def test_splitting_loses_nothing_and_leaves_only_flags_in_front(words: list[str]) -> None:
    flags, rest = split_at_command(words)
    assert flags + rest == words
    assert all(flag.startswith("-") for flag in flags)
    assert not rest or not rest[0].startswith("-")


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


def test_a_terminal_without_unicode_gets_escapes_instead_of_an_error() -> None:
    result = in_shell("PYTHONIOENCODING=ascii asap 'é'")
    assert result.returncode == 2
    assert "\\xe9" in result.stderr


def actions_of(parser: ArgumentParser) -> list[ArgumentParser]:
    return [
        inner
        for action in parser._actions
        if isinstance(action.choices, dict)
        for inner in action.choices.values()
    ]


@pytest.mark.parametrize("name", COMMANDS)
def test_files_that_the_help_names_are_there_and_actions_are_described(name: str) -> None:
    parser = command_parser(name, COMMANDS[name].load())
    texts = [parser.format_help(), top_level_parser().format_help()]
    for action in actions_of(parser):
        assert action.description
        texts.append(action.format_help())
    for path in set(re.findall(r"examples/[\w./-]+", "\n".join(texts))):
        assert (REPO / path).exists(), path


def test_the_scenario_that_the_help_shows_is_one() -> None:
    shown = re.search(r"\{\"model\".*?\}\}\n", predict.HELP, re.DOTALL)
    assert shown
    assert parse_scenario(json.loads(shown.group())).plan
