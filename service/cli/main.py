"""Entry point of `asap`: finds the subcommand, runs it, prints an error as one line.

Nothing heavy is imported here: `asap --help` must start fast.
"""

import errno
import io
import os
import sys
from collections.abc import Sequence

from service.cli.parser import (
    COMMANDS,
    SERVER,
    UsageError,
    command_parser,
    load_command,
    split_at_command,
    top_level_parser,
)
from tools.errors import AsapError, InfeasibleError, InputError

FAILED, WRONG_INPUT, NOTHING_FEASIBLE = 1, 2, 3
INTERRUPTED, READER_GONE = 130, 141
"""128 + the signal's number, as a shell reports SIGINT and SIGPIPE."""
REFUSALS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT)
"""The file system says no: the machine's matter, not a fault of ours that a traceback would explain."""
TRACEBACK, TRACEBACK_KEPT_S = "asap-traceback-", 7 * 86400.0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `asap` with these arguments (the process's own when None) and returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a character it cannot show becomes an escape, no error
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            status = run_command(words)
        except SystemExit as leave:  # argparse has printed the help or the version
            status = leave.code if isinstance(leave.code, int) else 0
        sys.stdout.flush()
    except BrokenPipeError:
        status = READER_GONE
    except KeyboardInterrupt:
        complain("interrupted")
        status = INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last place where a user can be spared a traceback
        status = report_error(error, debug="--debug" in words)
    try:
        sys.stdout.flush()
    except OSError:  # what cannot be written is dropped, or the interpreter would complain again at exit
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    return status


def run_command(words: Sequence[str]) -> int:
    flags, rest = split_at_command(words)
    server = top_level_parser().parse_args(flags).server
    if not rest:
        raise UsageError(f"no command given, choose one of {', '.join(COMMANDS)} (see 'asap --help')")
    name, *arguments = rest
    if name not in COMMANDS:
        from difflib import get_close_matches

        near = get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(COMMANDS)}"
        raise UsageError(f"unknown command {name!r}, {hint} (see 'asap --help')")
    module = load_command(name)
    passed_on = [SERVER, server] if server else []
    return module.run(command_parser(name, module).parse_args([*arguments, *passed_on])) or 0


def report_error(error: Exception, debug: bool) -> int:
    """Prints it as one line, and returns the exit status."""
    if debug:
        sys.stderr.write(format_traceback(error))
    inputs: tuple[type[Exception], ...] = (InputError, UsageError)
    infeasible: tuple[type[Exception], ...] = (InfeasibleError,)
    meant_for_the_user: tuple[type[Exception], ...] = (AsapError, UsageError)
    if client := sys.modules.get("asap_client.errors"):  # not imported only to ask
        inputs += (client.InputError,)
        infeasible += (client.InfeasibleError,)
        meant_for_the_user += (client.AsapError,)
    if isinstance(error, meant_for_the_user):
        complain(str(error))
        if isinstance(error, inputs):
            return WRONG_INPUT
        return NOTHING_FEASIBLE if isinstance(error, infeasible) else FAILED
    if isinstance(error, OSError) and error.errno in REFUSALS:
        complain(f"{error.filename or 'output'}: {error.strerror}")
        return FAILED
    more = "" if debug else f"; {keep_traceback(error)}"
    complain(f"unexpected {type(error).__name__}: {error}{more}")
    return FAILED


def complain(message: str) -> None:
    """One line, whatever the message holds: it may quote the user's input."""
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in message)
    sys.stderr.write(f"asap: error: {line}\n")


def format_traceback(error: Exception) -> str:
    from traceback import format_exception

    return "".join(format_exception(error))


def keep_traceback(error: Exception) -> str:
    """Writes the traceback to a file, since a run fed from standard input cannot simply be repeated.

    Those of this user that are a week old are deleted: nobody reads them any more.
    """
    import time
    from pathlib import Path
    from tempfile import NamedTemporaryFile, gettempdir

    try:
        for old in Path(gettempdir()).glob(f"{TRACEBACK}*.txt"):
            kept = old.lstat()
            if kept.st_uid == os.getuid() and time.time() - kept.st_mtime > TRACEBACK_KEPT_S:
                old.unlink()
        with NamedTemporaryFile(prefix=TRACEBACK, suffix=".txt", delete=False) as file:
            file.write(format_traceback(error).encode(errors="backslashreplace"))
    except OSError:
        return "add --debug for the traceback"
    return f"the traceback is in {file.name}"


if __name__ == "__main__":
    sys.exit(main())
