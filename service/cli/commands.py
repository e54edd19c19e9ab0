"""The table of subcommands. A subcommand's module is imported only when it is called.

Not here: what a subcommand does. Each module named in the table has `HELP` (the text of
`asap NAME --help`), `add_arguments(parser)` and `run(args)`, which returns the exit status.
"""

from argparse import ArgumentParser, Namespace
from importlib import import_module
from typing import NamedTuple, Protocol, cast


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
        return cast(CommandModule, import_module(self.module))


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
    "profile": Command(
        "service.cli.profile",
        "run a training command under the profiler",
        "asap profile --out traces -- torchrun --nproc-per-node 8 train.py",
    ),
    "dry-run": Command(
        "service.cli.dry_run",
        "run a plan's program without devices, beside the cost model",
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
        "let a server do that every night",
        'asap schedule add examples/nightly.yaml --name pretraining --cron "30 5 * * *"',
    ),
    "mcp": Command(
        "service.cli.mcp",
        "these tools for an assistant, over the Model Context Protocol",
        "asap mcp",
    ),
}
