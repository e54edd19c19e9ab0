"""`asap hardware`: the device catalogue and its sources."""

from argparse import ArgumentParser, Namespace

from rich.console import Console
from rich.text import Text

from service.cli.io import make_table, naming_arguments, write_json
from service.cli.parser import add_action, add_actions
from tools.hardware import Device, describe, device_names, get_device
from tools.hardware.catalogue import FIGURES, in_file_units
from tools.hardware.device import FLOPS_PER_TFLOPS, peak_key

HELP = """\
List the accelerators in the catalogue, or show one with the source of every figure.

The name is used as `cluster.device` in a scenario. To replace a figure that differs in your cluster, put it
under `cluster.overrides` by the name that 'show' prints.

Examples:
  asap hardware list
  asap hardware show h100
  asap hardware list --json | jq -r .name"""
LIST_NOTE = """
Peaks are dense, in TFLOP/s; 16-bit is bf16, or fp16 without bf16.
Links are per device and one direction: fast inside the domain (2D, 3D: a
torus), net beyond it. 'asap hardware show NAME' gives the sources."""
# Two lines each: the whole table has to fit 80 columns.
COLUMNS = (
    "\ndevice", ">memory\nGiB", ">memory\nGB/s", ">\n16-bit", ">\nfp8", ">\nfp4", ">fast\nGB/s",
    ">net\nGb/s", "\ndomain",
)  # fmt: skip


def add_arguments(parser: ArgumentParser) -> None:
    actions = add_actions(parser)
    add_action(actions, "list", "print one line per device", list_devices)
    showing = add_action(actions, "show", "print every figure of one device and its source", show)
    showing.add_argument("name", metavar="NAME", help="a name or an alias, for example h100-sxm-80gb")


def run(args: Namespace) -> None:
    args.act(args)


def list_devices(args: Namespace) -> None:
    devices = [get_device(name) for name in device_names()]
    if args.json:
        described = (describe(device).items() for device in devices)
        write_json(*({key: value for key, value in of if key != "sources"} for of in described))
        return
    console = Console()
    console.print(make_table(*COLUMNS, rows=map(_list_row, devices)))
    console.print(LIST_NOTE)


def _list_row(device: Device) -> tuple[str, ...]:
    def short(value: float) -> str:
        return f"{value:.0f}" if value >= 10 else f"{value:.2g}"

    peaks = {precision: short(peak / FLOPS_PER_TFLOPS) for precision, peak in device.peak_flops.items()}
    shape = f" {device.torus_dimensions}D" if device.torus_dimensions else ""
    return (
        device.name,
        f"{device.memory_bytes / 2**30:.1f}",
        short(device.memory_bandwidth_bytes_per_s / 1e9),
        peaks.get("bf16") or peaks.get("fp16", "-"),
        peaks.get("fp8", "-"),
        peaks.get("nvfp4", "-"),
        short(device.intra_node_bytes_per_s / 1e9),
        short(device.inter_node_bytes_per_s * 8 / 1e9),
        f"{device.fast_domain_devices}{shape}",
    )


def show(args: Namespace) -> None:
    """Every figure under the key that `cluster.overrides` knows it by, and where each comes from."""
    with naming_arguments(args, {"cluster.device": "NAME"}):
        device = get_device(args.name)
    if args.json:
        write_json(describe(device))
        return
    console = Console()
    aliases = f"\nalso called {', '.join(device.aliases)}" if device.aliases else ""
    about = f"  {device.title} ({device.vendor}, generation {device.generation}){aliases}\n"
    console.print(Text.assemble((device.name, "bold"), about))
    figures = [(figure.key, in_file_units(device, figure), figure.unit) for figure in FIGURES]
    figures += [
        (peak_key(precision), peak / FLOPS_PER_TFLOPS, "TFLOP/s")
        for precision, peak in device.peak_flops.items()
    ]
    numbers = {source: number for number, source in enumerate(dict.fromkeys(device.sources.values()), 1)}
    rows = ((key, f"{value:g}", unit, f"[{numbers[device.sources[key]]}]") for key, value, unit in figures)
    console.print(make_table("figure", ">value", "unit", ">source", rows=rows))
    console.print("\nSources", style="bold")
    for source, number in numbers.items():
        text, scheme, rest = source.partition("https://")
        # The address under its text, in one piece: a terminal can open it, and a reader copy it.
        line = f"{text.rstrip(', ;')}\n     {scheme}{rest}" if scheme else text
        console.print(Text(f"{f'[{number}]':>4} {line}"), soft_wrap=True)
