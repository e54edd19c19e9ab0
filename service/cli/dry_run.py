"""`asap dry-run`: the reference trainer's program for a plan, run without devices, next to the cost model."""

from argparse import ArgumentParser, Namespace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from service.cli.io import MAX_SCENARIO_BYTES, make_table, read_object, write_json_line
from tools.errors import AsapError

if TYPE_CHECKING:
    from rich.table import Table

    from testbed.dry_run import Compared, DryRun


HELP = """\
Run the reference trainer's program for a plan, for up to 1,024 ranks in one process and without
any device: tensors have shapes only, messages are counted and not sent. FLOPs, bytes on the wire
and peak memory are shown next to the cost model's figures.

The first, a middle and the last pipeline stage are run with a few layers and micro-batches; the
rest is extrapolated linearly. Bytes are those of one rank (the one that sends most), as ring
algorithms send them. The plan must be one that the reference trainer runs: training.framework
torch-fsdp2, precision fp32 or bf16.

Needs the testbed and PyTorch in this environment: pip install ./testbed (from a checkout)

FILE is what 'asap predict' takes.

Examples:
  asap dry-run scenario.json
  asap dry-run --json scenario.json"""

_AXES = {
    "tp": "tensor parallelism",
    "cp": "context parallelism",
    "ep": "expert parallelism",
    "dp": "data parallelism",
    "pp": "pipeline (sent)",
}
_UNITS = ("", "K", "M", "G", "T", "P", "E", "Z")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a scenario with a plan, or - for standard input")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")


def run(args: Namespace) -> int:
    from tools.scenario import parse_scenario

    scenario = parse_scenario(read_object(args.file, MAX_SCENARIO_BYTES))
    for module, part in (("testbed", "the testbed"), ("torch", "PyTorch")):
        if find_spec(module) is None:
            raise AsapError(f"asap dry-run needs {part} here: pip install ./testbed (from a checkout)")
    from testbed.dry_run import dry_run

    ran = dry_run(scenario)
    if args.json:
        write_json_line(ran.as_json())
    else:
        _print(ran)
    return 0


def _print(ran: "DryRun") -> None:
    from rich.console import Console
    from rich.text import Text

    from service.cli.io import safe_text

    console = Console(highlight=False)
    stages = ", ".join(map(str, ran.stages.stages_run))
    where = f" on {ran.scenario.cluster.num_devices} ranks"
    how = f", stage {stages} of {ran.plan.pp} run in {ran.took_s:.1f} s{_how(ran)}"
    console.print(Text.assemble(safe_text(ran.scenario.model.name or "model", "bold"), where + how))
    console.print(_figures(ran))
    console.print(_collectives(ran))


def _how(ran: "DryRun") -> str:
    few = {"layers": ran.stages.extrapolated_layers, "micro-batches": ran.stages.extrapolated_micro_batches}
    named = " and ".join(name for name, was in few.items() if was)
    return f", from fewer {named}" if named else ""


def _figures(ran: "DryRun") -> "Table":
    table = make_table("", ">program", ">cost model", ">ratio")
    _row(table, "FLOPs per step, all ranks", ran.flops)
    for axis, figure in ran.wire_bytes.items():
        if figure.program or figure.cost_model:
            _row(table, f"wire bytes per rank: {_AXES[axis]}", figure)
    for part, figure in ran.memory_bytes.items():
        _row(table, f"memory bytes: {part.replace('_', ' ')}", figure)
    return table


def _collectives(ran: "DryRun") -> "Table":
    from testbed.expected import traffic_of

    table = make_table(">stage", "group", "collective", ">messages", ">bytes", ">on the wire")
    for stage in ran.stages.stages_run:
        for row in traffic_of(ran.stages.figures[stage]):
            amounts = (f"{row.messages:,.0f}", _short(row.total_bytes), _short(row.wire_bytes))
            table.add_row(str(stage), row.group, row.kind, *amounts)
    return table


def _row(table: "Table", name: str, figure: "Compared") -> None:
    ratio = "-" if figure.ratio is None else f"{figure.ratio:.3f}"
    table.add_row(name, _short(figure.program), _short(figure.cost_model), ratio)


def _short(value: float) -> str:
    """Three digits and a power of a thousand."""
    power = 0
    while abs(value) >= 999.5 and power < len(_UNITS) - 1:
        value, power = value / 1000.0, power + 1
    return f"{value:.3g} {_UNITS[power]}".strip()
