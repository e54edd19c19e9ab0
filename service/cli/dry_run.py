"""`asap dry-run`: the reference trainer's program for a plan, run without devices, next to the cost model."""

import sys
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from importlib.util import find_spec
from typing import TYPE_CHECKING

from service.cli.calibrate import read_calibration
from service.cli.io import make_table, read_scenario, safe_text, write_json
from service.cli.parser import add_calibration
from tools.errors import AsapError

if TYPE_CHECKING:
    from testbed.dry_run import DryRun
    from testbed.one_rank import OneRank

HELP = """\
Run the reference trainer's program for a plan, for up to 1,024 ranks in one process and without
any device: tensors have shapes only, messages are counted and not sent. FLOPs, bytes on the wire
and peak memory are shown next to the cost model's figures.

The first, a middle and the last pipeline stage are run with a few layers and micro-batches; the
rest is extrapolated linearly. Bytes are those of one rank (the one that sends most), as ring
algorithms send them. The plan must be one that the reference trainer runs: training.framework
torch-fsdp2, precision fp32 or bf16.

With --measure one rank of the plan runs on one device of this machine with real tensors, the
others faked: the step before the cluster is free. What the rank does is measured, with fewer
layers where the model is large; messages and the pipeline's bubble are added by the cost model
(with --calibration by the cluster's own). Memory is that of the fullest stage's rank.

Needs the testbed and PyTorch in this environment: pip install ./testbed (from a checkout)

FILE is what 'asap predict' takes.

Examples:
  asap dry-run scenario.json
  asap dry-run --json scenario.json
  asap dry-run --measure scenario.json"""

AXES = {
    "tp": "tensor parallelism",
    "cp": "context parallelism",
    "ep": "expert parallelism",
    "dp": "data parallelism",
    "pp": "pipeline (sent)",
}
UNITS = ("", "K", "M", "G", "T", "P", "E", "Z")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a scenario with a plan, or - for standard input")
    parser.add_argument("--measure", action="store_true", help="time one rank here, the others faked")
    add_calibration(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")


def run(args: Namespace) -> None:
    scenario = read_scenario(args.file)
    for module, part in (("testbed", "the testbed"), ("torch", "PyTorch")):
        if find_spec(module) is None:
            raise AsapError(f"asap dry-run needs {part} here: pip install ./testbed (from a checkout)")
    if args.measure:
        from testbed.one_rank import measure_rank

        calibration = read_calibration(args.calibration)[0] if args.calibration else None
        one = measure_rank(scenario, calibration)
        if args.json:
            write_json({**asdict(one), "plan": one.plan.model_dump(mode="json")})
        else:
            print_one(one)
        return
    from testbed.dry_run import dry_run

    ran = dry_run(scenario)
    if args.json:
        write_json(ran.as_json())
    else:
        print_run(ran)


def print_one(one: "OneRank") -> None:
    sys.stdout.write(
        f"{one.step_time_s:.4g} s per step: {one.rank_s:.4g} s measured on one device, "
        f"{one.messages_s:.4g} s of messages and {one.bubble_s:.4g} s of bubble by the cost model, "
        f"which alone says {one.predicted_s:.4g} s\n{one.peak_memory_gib:.4g} GiB on the fullest rank\n"
    )


def print_run(ran: "DryRun") -> None:
    from rich.console import Console
    from rich.text import Text

    from testbed.expected import traffic_of

    stages, console = ran.stages, Console(highlight=False)
    fewer = {"layers": stages.extrapolated_layers, "micro-batches": stages.extrapolated_micro_batches}
    names = " and ".join(name for name, is_fewer in fewer.items() if is_fewer)
    where = f" on {ran.scenario.cluster.num_devices} ranks"
    how = f", stage {', '.join(map(str, stages.stages_run))} of {ran.plan.pp} run in {ran.took_s:.1f} s"
    how += f", from fewer {names}" if names else ""
    console.print(Text.assemble(safe_text(ran.scenario.model.name or "model", "bold"), where + how))
    figures = {"FLOPs per step, all ranks": ran.flops}
    for axis, figure in ran.wire_bytes.items():
        if figure.program or figure.cost_model:
            figures[f"wire bytes per rank: {AXES[axis]}"] = figure
    for part, figure in ran.memory_bytes.items():
        figures[f"memory bytes: {part.replace('_', ' ')}"] = figure
    compared = (
        (
            *(name, _short(figure.program), _short(figure.cost_model)),
            "-" if figure.ratio is None else f"{figure.ratio:.3f}",
        )
        for name, figure in figures.items()
    )
    console.print(make_table("", ">program", ">cost model", ">ratio", rows=compared))
    messages = (
        (
            *(str(stage), row.group, row.kind),
            *(f"{row.messages:,.0f}", _short(row.total_bytes), _short(row.wire_bytes)),
        )
        for stage in stages.stages_run
        for row in traffic_of(stages.figures[stage])
    )
    columns = (">stage", "group", "collective", ">messages", ">bytes", ">on the wire")
    console.print(make_table(*columns, rows=messages))


def _short(value: float) -> str:
    """Three digits and a power of a thousand."""
    power = 0
    while abs(value) >= 999.5 and power < len(UNITS) - 1:
        value, power = value / 1000.0, power + 1
    return f"{value:.3g} {UNITS[power]}".strip()
