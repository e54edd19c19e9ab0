"""`asap constants`: every constant that the prediction of a scenario uses, and where it comes from."""

from argparse import ArgumentParser, Namespace
from dataclasses import asdict, fields

from rich.console import Console
from rich.table import Table

from service.cli.calibrate import read_calibration
from service.cli.io import read_scenario, write_json
from service.cli.parser import add_calibration
from tools.hardware.catalogue import FIGURES, in_file_units
from tools.model.calibration import shipped_calibration
from tools.model.constants import constants_of, memory_settings
from tools.physics.encode import encode, scenario_device
from tools.physics.traits import framework_traits

HELP = """\
Print every constant that the prediction of a scenario uses: value, prior, what the fit made of it, source.

The value of a fitted constant is prior * exp(shift), kept within its bounds; the shifts of the levels
(everywhere, device generation, framework, and what a calibration of your own cluster adds) are summed.
Below stand the numbers of the interval and of the residual, what the framework's own code does, its memory
layout, and the device's figures.

Examples:
  asap constants examples/llama-3.1-70b-64xh100.json
  asap constants scenario.json --json | jq '.fitted[] | select(.name == "gemm_efficiency")'"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", metavar="SCENARIO", help="a scenario as JSON; - for standard input")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    add_calibration(parser)


def run(args: Namespace) -> None:
    scenario = read_scenario(args.file)
    calibration = read_calibration(args.calibration)[0] or shipped_calibration()
    _, keys = encode([scenario])
    fitted = constants_of(keys, calibration.shifts)
    device = scenario_device(scenario.cluster)
    settings = memory_settings(keys.framework, [scenario.training.precision])
    traits = asdict(framework_traits(scenario.training.framework))
    memory = {f.name: float(getattr(settings, f.name)) for f in fields(settings)}
    device_figures = {figure.key: in_file_units(device, figure) for figure in FIGURES}
    intervals, prior = calibration.intervals, calibration.residual.prior
    learned = {f"interval: {name}": value for name, value in intervals.spread.items()}
    learned |= {f"interval: {kind}, low": ends[0] for kind, ends in intervals.quantiles.items()}
    learned |= {f"interval: {kind}, high": ends[1] for kind, ends in intervals.quantiles.items()}
    learned |= {f"comparison: {kind}": value for kind, value in intervals.pair_error.items()}
    prices = {f"price of {name}": value for name, value in asdict(prior.prices).items()}
    deviations = {name: getattr(prior, name) for name in ("deviation", "noise", "moe_noise")}
    learned |= {f"residual: {name}": value for name, value in (deviations | prices).items()}
    if args.json:
        sources = dict(device.sources)
        write_json(
            {
                "fitted": [asdict(constant) for constant in fitted],
                "errors": learned,
                "framework": {"name": scenario.training.framework, "speed": traits, "memory": memory},
                "device": {"name": device.name, "figures": device_figures, "sources": sources},
            }
        )
        return
    framework, console = scenario.training.framework, Console(highlight=False)
    console.print(f"Constants of {framework} on {scenario.cluster.device}\n", style="bold")
    table = Table("constant", box=None, header_style="bold", padding=(0, 1))
    for column in ("value", "prior", "shift"):
        table.add_column(column, justify="right")
    table.add_column("from")
    table.add_column("source of the prior", ratio=1)
    for constant in fitted:
        levels = ", ".join(f"{level} {shift:+.3f}" for level, shift in constant.shifts.items())
        figures = (f"{constant.value:.3g}", f"{constant.prior:.3g}", f"{constant.shift:+.1%}")
        table.add_row(constant.name, *figures, levels or "the prior alone", constant.source)
    console.print(table)
    for title, facts in (
        ("What errors of published runs taught (docs/cost-model.md)", learned),
        (f"{framework}: what its code does", traits),
        (f"{framework}: memory", memory),
        (f"{device.title} (sources: asap hardware show {device.name})", device_figures),
    ):
        console.print(f"\n{title}", style="bold")
        table = Table(box=None, show_header=False, padding=(0, 1))
        for name, value in facts.items():
            table.add_row(name, f"{value:g}" if isinstance(value, float) else str(value))
        console.print(table)
