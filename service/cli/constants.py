"""`asap constants`: every constant that the prediction of a scenario uses, and where it comes from."""

from argparse import ArgumentParser, Namespace
from dataclasses import asdict, fields

from rich.console import Console
from rich.table import Table

from service.cli.calibrate import read_calibration
from service.cli.io import MAX_SCENARIO_BYTES, read_object, write_json_line
from service.cli.parser import add_calibration
from tools.cost.calibration import shipped_calibration
from tools.cost.constants import ConstantUse, constants_of
from tools.cost.encode import encode, scenario_device
from tools.cost.memory import memory_settings
from tools.cost.traits import framework_traits
from tools.hardware.device import FIGURES, in_file_units
from tools.scenario import Scenario, parse_scenario

HELP = """\
Print every constant that the prediction of a scenario uses: value, prior, what the fit made of it, source.

The value of a fitted constant is prior * exp(shift), kept within its bounds; the shifts of the levels
(everywhere, device generation, framework, and what a calibration of your own cluster adds) are summed.
Below stand what the framework's own code does, its memory layout, and the device's figures.

Examples:
  asap constants examples/llama-3.1-70b-64xh100.json
  asap constants scenario.json --json | jq '.fitted[] | select(.name == "gemm_efficiency")'"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", metavar="SCENARIO", help="a scenario as JSON; - for standard input")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    add_calibration(parser)


def run(args: Namespace) -> int:
    scenario = parse_scenario(read_object(args.file, MAX_SCENARIO_BYTES))
    calibration = read_calibration(args.calibration) or shipped_calibration()
    _, keys = encode([scenario])
    fitted = constants_of(keys, calibration.shifts)
    device = scenario_device(scenario.cluster)
    settings = memory_settings(keys.framework, [scenario.training.precision])
    traits = asdict(framework_traits(scenario.training.framework))
    memory = {f.name: float(getattr(settings, f.name)) for f in fields(settings)}
    figures = {figure.key: in_file_units(device, figure) for figure in FIGURES}
    if args.json:
        write_json_line(
            {
                "fitted": [asdict(constant) for constant in fitted],
                "framework": {"name": scenario.training.framework, "speed": traits, "memory": memory},
                "device": {"name": device.name, "figures": figures, "sources": dict(device.sources)},
            }
        )
        return 0
    console = Console(highlight=False)
    _print_fitted(console, scenario, fitted)
    _print_facts(console, f"{scenario.training.framework}: what its code does", traits)
    _print_facts(console, f"{scenario.training.framework}: memory", memory)
    _print_facts(console, f"{device.title} (sources: asap hardware show {device.name})", figures)
    return 0


def _print_fitted(console: Console, scenario: Scenario, constants: list[ConstantUse]) -> None:
    table = Table(box=None, header_style="bold", title=None, padding=(0, 1))
    table.add_column("constant")
    for column in ("value", "prior", "shift"):
        table.add_column(column, justify="right")
    table.add_column("from")
    table.add_column("source of the prior", ratio=1)
    for constant in constants:
        levels = ", ".join(f"{level} {shift:+.3f}" for level, shift in constant.shifts.items())
        table.add_row(
            constant.name,
            f"{constant.value:.3g}",
            f"{constant.prior:.3g}",
            f"{constant.shift:+.1%}",
            levels or "the prior alone",
            constant.source,
        )
    console.print(f"Constants of {scenario.training.framework} on {scenario.cluster.device}\n", style="bold")
    console.print(table)


def _print_facts(console: Console, title: str, facts: dict[str, object] | dict[str, float]) -> None:
    console.print(f"\n{title}", style="bold")
    table = Table(box=None, show_header=False, padding=(0, 1))
    for name, value in facts.items():
        table.add_row(name, f"{value:g}" if isinstance(value, float) else str(value))
    console.print(table)
