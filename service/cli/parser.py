"""The table of subcommands, whose modules are imported only when called, and the argument parsers."""

import gc
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn, Protocol, cast

from service import __version__

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    Actions = _SubParsersAction[ArgumentParser]

COMMANDS: dict[str, tuple[str, str]] = {
    "predict": ("step time, memory and bottleneck of a training plan", "examples/llama-3.1-70b-64xh100.json"),
    "optimize": (
        "search every legal plan and propose the three best, with reasons",
        "examples/llama-3.1-70b-64xh100.json",
    ),
    "where": (
        "the same training on other clusters: the best plan of each, days against cost",
        "examples/llama-3.1-70b.config.json --tokens 15T --clusters examples/clusters.csv",
    ),
    "explain": (
        "why a plan is not proposed, or why a job is slower than a published run",
        "examples/llama-3.1-70b-64xh100.json --plan tp=2",
    ),
    "constants": (
        "every constant behind a prediction: value, prior, fitted shift, source",
        "examples/llama-3.1-70b-64xh100.json",
    ),
    "hardware": ("the device catalogue: every figure with its source", "show h100-sxm-80gb"),
    "diagnose": (
        "where the time of profiled training steps goes, and why",
        "examples/traces/ddp-gloo-straggler",
    ),
    "calibrate": ("learn from a cluster's own runs", "runs.jsonl --out cluster.json"),
    "probe": (
        "measure the nodes themselves in a minute: products, memory, links, slow ranks",
        "--device cpu --nproc 2 --out probe",
    ),
    "import-runs": (
        "step times from the logs of runs, for asap calibrate",
        "train.log --scenario job.json >> runs.jsonl",
    ),
    "runs": (
        "measured runs: check rows, add some, find those most like a scenario",
        "near examples/llama-3.1-70b-64xh100.json",
    ),
    "profile": (
        "run a training command under the profiler",
        "--out traces -- torchrun --nproc-per-node 8 train.py",
    ),
    "dry-run": ("run a plan's program without devices, next to the cost model", "scenario.json"),
    "export": (
        "a plan as the configuration of a training framework",
        "examples/llama-3.1-70b-64xh100.json --format megatron",
    ),
    "patch": (
        "your own configuration or script changed to a proposal, as a diff",
        "pretrain.sh --report report.json --plan 1",
    ),
    "import": (
        "a scenario from the configuration of today's job",
        "train.toml --format torchtitan --model config.json --device h100",
    ),
    "kb": (
        "the knowledge base: playbooks and measured cases, and your own",
        'search "pipeline bubble takes a quarter of the step"',
    ),
    "serve": ("the API and the workers, in one process or many", "--port 8000"),
    "sessions": (
        "submit sessions to a server, follow them and decide",
        "submit examples/llama-3.1-70b-64xh100.json --wait",
    ),
    "ask": ("a question about a finished session: why not, what if", 'ID "why not tp 8?"'),
    "keys": ("the API keys of this installation", "add ci --scope submit"),
    "retention": ("what has expired, before workers delete it", ""),
    "nightly": (
        "what got slower since yesterday, why, and what it costs",
        "run --config examples/nightly.yaml",
    ),
    "schedule": (
        "let a server run that every night",
        'add examples/nightly.yaml --name pretraining --cron "30 5 * * *"',
    ),
    "doctor": ("check this installation: folders, database, knowledge, language model, launchers", ""),
    "mcp": ("ASAP's tools for an assistant, over the Model Context Protocol", ""),
}
"""By name: what it is for, and an example of its arguments."""
MODULES = {"import": "import_plan"}
"""Modules of service/cli that do not have their command's name."""
ABOUT = """\
ASAP predicts how long a training step takes under a sharding plan and whether it fits,
and finds where the time of a real run goes. It needs no GPU, no key and no server.
"""
STATUSES = """\
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
DEBUG_HELP = "show the full traceback of an error"
SERVER = "--server"
"""The only option before a subcommand that takes a value; it is passed on to the subcommand."""


class CommandModule(Protocol):
    """What a module in service/cli must offer to be a subcommand."""

    HELP: str

    def add_arguments(self, parser: ArgumentParser) -> None: ...

    def run(self, args: Namespace) -> int | None: ...


def load_command(name: str) -> CommandModule:
    gc.disable()  # imports leave no garbage, and looking for some takes a tenth of a short command
    try:
        module = MODULES.get(name, name.replace("-", "_"))
        return cast(CommandModule, import_module(f"service.cli.{module}"))
    finally:
        gc.freeze()
        gc.enable()


class UsageError(Exception):
    """The command line itself is wrong; the message points to the usage. Not an AsapError."""


class OneLineParser(ArgumentParser):
    """Raises UsageError instead of printing several lines and exiting."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see '{self.prog} --help')")


def top_level_parser() -> OneLineParser:
    width = max(map(len, COMMANDS))
    commands = "".join(
        f"  {name:<{width}}  {summary}\n  {'':<{width}}  $ {f'asap {name} {example}'.rstrip()}\n"
        for name, (summary, example) in COMMANDS.items()
    )
    parser = OneLineParser(
        prog="asap",
        usage="asap [--help] [--version] [--debug] [--server URL] COMMAND ...",
        description=ABOUT,
        epilog=f"commands:\n{commands}\n{STATUSES}",
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    version = f"asap {__version__}"
    parser.add_argument("--version", action="version", version=version, help="print the version and exit")
    parser.add_argument(SERVER, metavar="URL", help="use this 'asap serve' (optimize, sessions, schedule)")
    parser.add_argument("--debug", action="store_true", help=DEBUG_HELP)
    return parser


def command_parser(name: str, module: CommandModule) -> OneLineParser:
    parser = OneLineParser(
        prog=f"asap {name}",
        description=module.HELP,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.add_arguments(parser)
    parser.add_argument("--debug", action="store_true", help=DEBUG_HELP)
    return parser


def add_actions(parser: ArgumentParser) -> "Actions":
    return parser.add_subparsers(dest="action", metavar="ACTION", required=True)


def add_action(
    actions: "Actions", name: str, about: str, act: Callable[..., int | None], epilog: str | None = None
) -> ArgumentParser:
    """Adds an action of a command, with the options that every action has; `args.act` is what it does."""
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
    action.set_defaults(act=act)
    return action


def add_options(parser: ArgumentParser, *options: tuple[str, str, str]) -> None:
    """Each by its name, what it takes, and what it is for.

    What takes nothing is a switch; N, RANK and S are numbers from 1; "NAME ..." may be given several times.
    """
    for name, takes, about in options:
        if not takes:
            parser.add_argument(name, action="store_true", help=about)
        elif takes.endswith(" ..."):
            parser.add_argument(name, action="append", default=[], metavar=takes[:-4], help=about)
        else:
            kind = positive_number if takes in ("N", "RANK", "S") else str
            parser.add_argument(name, type=kind, metavar=takes, help=about)


def add_server(parser: ArgumentParser) -> None:
    parser.add_argument(SERVER, metavar="URL", help="address of the server (ASAP_SERVER)")


def add_run_goal(parser: ArgumentParser) -> None:
    add_options(
        parser,
        (
            "--tokens",
            "TOKENS",
            "forecast a run of N tokens, for example 15T: days, device-hours",
        ),
        ("--price", "P", "price of a device-hour: the run's cost, and what one percent is worth"),
        ("--failures", "HOURS", "device-hours from one failure to the next: goodput, checkpoint interval"),
        ("--checkpoint-s", "S", "seconds that training stands still for a checkpoint (default: 30)"),
    )


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


def positive_figure(text: str) -> float:
    """For argparse, whose message then says what is allowed."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < 1e9:
        raise ArgumentTypeError(f"must be a number above 0, not {text[:20]!r}")
    return value


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
