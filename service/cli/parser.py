"""The table of subcommands, whose modules are imported only when called, and the argument parsers."""

import gc
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, NoReturn, Protocol, cast

from service import __version__

if TYPE_CHECKING:
    from argparse import _SubParsersAction


class CommandModule(Protocol):
    """What a module in service/cli must offer to be a subcommand."""

    HELP: str

    def add_arguments(self, parser: ArgumentParser) -> None: ...

    def run(self, args: Namespace) -> int: ...


class Command(NamedTuple):
    module: str
    summary: str
    example: str

    def load(self) -> CommandModule:
        gc.disable()  # imports leave no garbage, and looking for some takes a tenth of a short command
        try:
            return cast(CommandModule, import_module(self.module))
        finally:
            gc.freeze()
            gc.enable()


COMMANDS = {
    "predict": Command(
        "service.cli.predict",
        "step time, memory and bottleneck of a training plan",
        "asap predict examples/llama-3.1-70b-64xh100.json",
    ),
    "optimize": Command(
        "service.cli.optimize",
        "search every legal plan and propose the three best, with reasons",
        "asap optimize examples/llama-3.1-70b-64xh100.json",
    ),
    "explain": Command(
        "service.cli.explain",
        "why a plan is not proposed: rule, memory or time",
        "asap explain examples/llama-3.1-70b-64xh100.json --plan tp=2",
    ),
    "constants": Command(
        "service.cli.constants",
        "every constant behind a prediction: value, prior, fitted shift, source",
        "asap constants examples/llama-3.1-70b-64xh100.json",
    ),
    "hardware": Command(
        "service.cli.hardware",
        "the device catalogue: every figure with its source",
        "asap hardware show h100-sxm-80gb",
    ),
    "diagnose": Command(
        "service.cli.diagnose",
        "where the time of profiled training steps goes, and why",
        "asap diagnose examples/traces/ddp-gloo-straggler",
    ),
    "calibrate": Command(
        "service.cli.calibrate",
        "learn from a cluster's own runs",
        "asap calibrate runs.jsonl --out cluster.json",
    ),
    "probe": Command(
        "service.cli.probe",
        "measure the nodes themselves in a minute: products, memory, links, slow ranks",
        "asap probe --device cpu --nproc 2 --out probe",
    ),
    "import-runs": Command(
        "service.cli.import_runs",
        "step times from the logs of runs, for asap calibrate",
        "asap import-runs train.log --scenario job.json >> runs.jsonl",
    ),
    "profile": Command(
        "service.cli.profile",
        "run a training command under the profiler",
        "asap profile --out traces -- torchrun --nproc-per-node 8 train.py",
    ),
    "dry-run": Command(
        "service.cli.dry_run",
        "run a plan's program without devices, next to the cost model",
        "asap dry-run scenario.json",
    ),
    "export": Command(
        "service.cli.export",
        "a plan as the configuration of a training framework",
        "asap export examples/llama-3.1-70b-64xh100.json --format megatron",
    ),
    "import": Command(
        "service.cli.import_plan",
        "a scenario from the configuration of today's job",
        "asap import train.toml --format torchtitan --model config.json --device h100",
    ),
    "kb": Command(
        "service.cli.kb",
        "the knowledge base: playbooks and measured cases, and your own",
        'asap kb search "pipeline bubble takes a quarter of the step"',
    ),
    "serve": Command(
        "service.cli.serve",
        "the API and the workers, in one process or many",
        "asap serve --port 8000",
    ),
    "sessions": Command(
        "service.cli.sessions",
        "submit sessions to a server, follow them and decide",
        "asap sessions submit examples/llama-3.1-70b-64xh100.json --wait",
    ),
    "ask": Command(
        "service.cli.ask",
        "a question about a finished session: why not, what if",
        'asap ask ID "why not tp 8?"',
    ),
    "keys": Command(
        "service.cli.keys",
        "the API keys of this installation",
        "asap keys add ci --scope submit",
    ),
    "nightly": Command(
        "service.cli.nightly",
        "what got slower since yesterday, why, and what it costs",
        "asap nightly run --config examples/nightly.yaml",
    ),
    "schedule": Command(
        "service.cli.schedule",
        "let a server run that every night",
        'asap schedule add examples/nightly.yaml --name pretraining --cron "30 5 * * *"',
    ),
    "doctor": Command(
        "service.cli.doctor",
        "check this installation: folders, database, knowledge, language model, launchers",
        "asap doctor",
    ),
    "mcp": Command(
        "service.cli.mcp",
        "ASAP's tools for an assistant, over the Model Context Protocol",
        "asap mcp",
    ),
}


_ABOUT = """\
ASAP predicts how long a training step takes under a sharding plan and whether it fits,
and finds where the time of a real run goes. It needs no GPU, no key and no server.
"""

_STATUSES = """\
FILE may be - for standard input. With --json a command prints one JSON object per line on
standard output and nothing else there.

exit status:
  0  done
  1  failed for a reason that is not the input
  2  the input is wrong; one line on standard error names the field
  3  the input is right, but nothing feasible was found
  4  a workload got slower (nightly run, schedule run --wait)
  5  none did, but one is still slower (the same)

'asap COMMAND --help' says more about a command.
"""


SERVER = "--server"
"""The only option before a subcommand that takes a value; it is passed on to the subcommand."""


class UsageError(Exception):
    """The command line itself is wrong; the message points to the usage. Not an AsapError."""


class OneLineParser(ArgumentParser):
    """Raises UsageError instead of printing several lines and exiting."""

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
        "--server", metavar="URL", help="use this 'asap serve' (optimize, sessions, schedule)"
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
    """Adds an action of a command, with the options that every action has."""
    action = actions.add_parser(
        name,
        help=about,
        description=f"{about[0].upper()}{about[1:]}.",
        epilog=epilog,
        allow_abbrev=False,
        formatter_class=RawDescriptionHelpFormatter,
    )
    action.add_argument("--json", action="store_true", help="print one JSON object per line and nothing else")
    # The command has it already; suppressed here so that the outer one keeps its value.
    action.add_argument("--debug", action="store_true", default=SUPPRESS, help=SUPPRESS)
    return action


def add_calibration(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--calibration",
        metavar="FILE",
        help="what a cluster's own runs say, from 'asap calibrate' or 'asap diagnose'",
    )


def positive_number(text: str) -> int:
    """An argparse type whose message says what is allowed."""
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and int(text) > 0):
        raise ArgumentTypeError(f"must be a whole number of 1 or more, not {text[:20]!r}")
    return int(text)


def port_number(text: str) -> int:
    """For argparse, whose message then says what is allowed."""
    if not text.isdecimal() or int(text) > 65_535:
        raise ArgumentTypeError(f"got {text!r}; allowed: 0 to 65535")
    return int(text)


def split_at_command(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The flags before the subcommand, and the subcommand with everything after it."""
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
