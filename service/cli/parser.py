"""The argument parsers of `asap`: for what stands before the subcommand, for what follows, for its actions.

Not here: what happens with the arguments, and how errors are printed (main.py).
"""

from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from service import __version__
from service.cli.commands import COMMANDS, CommandModule

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_ABOUT = """\
ASAP predicts how long a training step takes under a sharding plan and whether it fits,
and finds where the time of a real run goes. It needs no GPU, no key and no server.
"""

_STATUSES = """\
FILE may be - for standard input. With --json a command prints one JSON object a line on
standard output and nothing else there.

exit status:
  0  done
  1  failed for a reason that is not the input
  2  the input is wrong; one line on standard error names the field
  3  the input is right, but nothing feasible was found
  4  a workload got slower (nightly run, schedule run --wait)

'asap COMMAND --help' tells more about a command.
"""


SERVER = "--server"
"""The only option before a subcommand that takes a value; the subcommand gets it."""


class UsageError(Exception):
    """The command line itself is wrong. Not an AsapError: the message says where to read about usage."""


class OneLineParser(ArgumentParser):
    """An ArgumentParser that raises UsageError where argparse would print several lines and leave."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see '{self.prog} --help')")


def top_level_parser() -> OneLineParser:
    parser = OneLineParser(
        prog="asap",
        usage="asap [--help] [--version] [--debug] [--server URL] COMMAND ...",
        description=_ABOUT,
        epilog=f"{_command_list()}\n{_STATUSES}",
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    version = f"asap {__version__}"
    parser.add_argument("--version", action="version", version=version, help="print the version and exit")
    parser.add_argument(
        "--server", metavar="URL", help="let this 'asap serve' answer (optimize, sessions, schedule)"
    )
    _add_debug(parser)
    return parser


def command_parser(name: str, module: CommandModule) -> OneLineParser:
    parser = OneLineParser(
        prog=f"asap {name}",
        description=module.HELP,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.add_arguments(parser)
    _add_debug(parser)
    return parser


def add_action(
    actions: "_SubParsersAction[ArgumentParser]", name: str, about: str, epilog: str | None = None
) -> ArgumentParser:
    """An action of a command, with the options that every action has."""
    action = actions.add_parser(
        name,
        help=about,
        description=f"{about[0].upper()}{about[1:]}.",
        epilog=epilog,
        allow_abbrev=False,
        formatter_class=RawDescriptionHelpFormatter,
    )
    action.add_argument("--json", action="store_true", help="print one JSON object a line and nothing else")
    # Known to the command already; suppressed here so that the outer one keeps its value.
    action.add_argument("--debug", action="store_true", default=SUPPRESS, help=SUPPRESS)
    return action


def positive_number(text: str) -> int:
    """For argparse, whose message then says what is allowed."""
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and int(text) > 0):
        raise ArgumentTypeError(f"must be a whole number of 1 or more, not {text[:20]!r}")
    return int(text)


def split_at_command(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """What stands before the subcommand (flags only), and the subcommand with all that follows."""
    values = {i + 1 for i, word in enumerate(argv) if word == SERVER}
    words = (i for i, word in enumerate(argv) if not word.startswith("-") and i not in values)
    start = next(words, len(argv))
    return list(argv[:start]), list(argv[start:])


def _command_list() -> str:
    width = max(map(len, COMMANDS))
    lines = (
        f"  {name:<{width}}  {command.summary}\n  {'':<{width}}  $ {command.example}"
        for name, command in COMMANDS.items()
    )
    return "commands:\n" + "\n".join(lines) + "\n"


def _add_debug(parser: ArgumentParser) -> None:
    parser.add_argument("--debug", action="store_true", help="show the full traceback of an error")
