"""Entry point of `asap`: finds the subcommand, runs it, prints an error as one line.

Nothing heavy is imported here: `asap --help` must start fast.
"""

import errno
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

import tools.errors
from service.cli.parser import (
    COMMANDS,
    SERVER,
    UsageError,
    command_parser,
    split_at_command,
    top_level_parser,
)

FAILED, WRONG_INPUT, NOTHING_FEASIBLE = 1, 2, 3
INTERRUPTED, READER_GONE = 130, 141
"""128 + the signal's number, as a shell reports SIGINT and SIGPIPE."""
REFUSALS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT)
"""The file system says no: the machine's matter, not a fault of ours that a traceback would explain."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `asap` with these arguments (the process's own when None) and returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    _print_any_text()
    try:
        status = _run(words)
        sys.stdout.flush()
    except BrokenPipeError:
        status = READER_GONE
    except KeyboardInterrupt:
        _complain("interrupted")
        status = INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last place where a user can be spared a traceback
        status = _report(error, debug="--debug" in words)
    _flush_or_discard()
    return status


def _run(words: list[str]) -> int:
    try:
        return _call(words)
    except SystemExit as leave:  # argparse has printed the help or the version
        return leave.code if isinstance(leave.code, int) else 0


def _call(words: list[str]) -> int:
    flags, rest = split_at_command(words)
    server = top_level_parser().parse_args(flags).server
    if not rest:
        raise UsageError(f"no command given, choose one of {', '.join(COMMANDS)} (see 'asap --help')")
    name, *arguments = rest
    if name not in COMMANDS:
        raise UsageError(_unknown_command(name))
    module = COMMANDS[name].load()
    passed_on = [SERVER, server] if server else []
    return module.run(command_parser(name, module).parse_args([*arguments, *passed_on]))


def _unknown_command(name: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, COMMANDS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(COMMANDS)}"
    return f"unknown command {name!r}, {hint} (see 'asap --help')"


def _report(error: Exception, debug: bool) -> int:
    if debug:
        sys.stderr.write(_traceback(error))
    status = _status(error)
    if status is not None:
        _complain(str(error))
        return status
    if isinstance(error, OSError) and error.errno in REFUSALS:
        _complain(f"{error.filename or 'output'}: {error.strerror}")
        return FAILED
    _complain(
        f"unexpected {type(error).__name__}: {error}" + ("" if debug else f"; {_keep_traceback(error)}")
    )
    return FAILED


def _status(error: Exception) -> int | None:
    """The exit status for an error that is meant for the user; None for any other."""
    trees: list[Any] = [tools.errors]
    if client_errors := sys.modules.get("asap_client.errors"):  # not imported only to ask
        trees.append(client_errors)
    for tree in trees:
        if isinstance(error, tree.InputError):
            return WRONG_INPUT
        if isinstance(error, tree.AsapError):
            return NOTHING_FEASIBLE if isinstance(error, tree.InfeasibleError) else FAILED
    return WRONG_INPUT if isinstance(error, UsageError) else None


def _complain(message: str) -> None:
    """One line, whatever the message holds: it may quote the user's input."""
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in message)
    sys.stderr.write(f"asap: error: {line}\n")


def _traceback(error: Exception) -> str:
    from traceback import format_exception

    return "".join(format_exception(error))


def _keep_traceback(error: Exception) -> str:
    """Writes the traceback to a file, since a run fed from standard input cannot simply be repeated."""
    from tempfile import NamedTemporaryFile

    try:
        with NamedTemporaryFile(
            "w",
            prefix="asap-traceback-",
            suffix=".txt",
            delete=False,
            encoding="utf-8",
            errors="backslashreplace",
        ) as file:
            file.write(_traceback(error))
    except OSError:
        return "add --debug for the traceback"
    return f"the traceback is in {file.name}"


def _print_any_text() -> None:
    """A character the terminal cannot show becomes an escape instead of an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _flush_or_discard() -> None:
    """Output that cannot be written is dropped, or the interpreter would complain about it again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


if __name__ == "__main__":
    sys.exit(main())
