"""`asap hardware`: the device catalogue and its sources."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from service.cli.io import make_table, write_json_line
from service.cli.parser import add_action
from tools.errors import InputError
from tools.hardware import Device, describe, device_names, get_device
from tools.hardware.device import FIGURES, FLOPS_PER_TFLOPS, in_file_units, peak_key

LIST_NOTE = """
Peaks are dense, in TFLOP/s; 16-bit is bf16, or fp16 without bf16.
Links are per device and one direction: fast inside the domain (2D, 3D: a
torus), net beyond it. 'asap hardware show NAME' gives the sources."""
_ABSENT = "-"
# Two lines each: the whole table has to fit 80 columns.
_FIGURES = (
    ">memory\nGiB", ">memory\nGB/s", ">\n16-bit", ">\nfp8", ">\nfp4", ">fast\nGB/s", ">net\nGb/s",
)  # fmt: skip


def list_table(devices: Sequence[Device]) -> Table:
    """One row per device."""
    table = make_table("\ndevice", *_FIGURES, "\ndomain")
    for device in devices:
        table.add_row(*_list_row(device))
    return table


def _list_row(device: Device) -> Iterator[str]:
    yield device.name
    yield f"{device.memory_bytes / 2**30:.1f}"
    yield _short(device.memory_bandwidth_bytes_per_s / 1e9)
    yield _peak(device, "bf16" if "bf16" in device.peak_flops else "fp16")
    yield _peak(device, "fp8")
    yield _peak(device, "nvfp4")
    yield _short(device.intra_node_bytes_per_s / 1e9)
    yield _short(device.inter_node_bytes_per_s * 8 / 1e9)
    shape = f" {device.torus_dimensions}D" if device.torus_dimensions else ""
    yield f"{device.fast_domain_devices}{shape}"


def _peak(device: Device, precision: str) -> str:
    if precision not in device.peak_flops:
        return _ABSENT
    return _short(device.peak_flops[precision] / FLOPS_PER_TFLOPS)


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def print_device(console: Console, device: Device) -> None:
    """Every figure under the key that `cluster.overrides` knows it by, and where each comes from."""
    numbers = {source: number for number, source in enumerate(dict.fromkeys(device.sources.values()), 1)}
    console.print(_heading(device))
    console.print(_figure_table(device, numbers))
    console.print("\nSources", style="bold")
    for source, number in numbers.items():
        # Text, not str: rich would take the brackets for markup. An address stays in one piece.
        console.print(Text(f"{f'[{number}]':>4} {_on_own_line(source)}"), soft_wrap=True)


def _figure_table(device: Device, numbers: dict[str, int]) -> Table:
    table = make_table("figure", ">value", "unit", ">source")
    for key, value, unit in _figures(device):
        table.add_row(key, f"{value:g}", unit, f"[{numbers[device.sources[key]]}]")
    return table


def _on_own_line(source: str) -> str:
    """The source with its address under it, where a terminal can open it and a reader copy it."""
    text, address, rest = source.partition("https://")
    return f"{text.rstrip(', ;')}\n     {address}{rest}" if address else text


def _heading(device: Device) -> Text:
    aliases = f"\nalso called {', '.join(device.aliases)}" if device.aliases else ""
    about = f"  {device.title} ({device.vendor}, generation {device.generation}){aliases}\n"
    return Text.assemble((device.name, "bold"), about)


def _figures(device: Device) -> Iterator[tuple[str, float, str]]:
    for figure in FIGURES:
        yield figure.key, in_file_units(device, figure), figure.unit
    for precision, peak in device.peak_flops.items():
        yield peak_key(precision), peak / FLOPS_PER_TFLOPS, "TFLOP/s"


HELP = """\
List the accelerators in the catalogue, or show one with the source of every figure.

The name is used as `cluster.device` in a scenario. To replace a figure that differs in your cluster, put it
under `cluster.overrides` by the name that 'show' prints.

Examples:
  asap hardware list
  asap hardware show h100
  asap hardware list --json | jq -r .name"""


def add_arguments(parser: ArgumentParser) -> None:
    """The two actions and their options."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    add_action(actions, "list", "print one line per device")
    showing = add_action(actions, "show", "print every figure of one device and its source")
    showing.add_argument("name", metavar="NAME", help="a name or an alias, for example h100-sxm-80gb")


def run(args: Namespace) -> int:
    """Print the list, or one device."""
    if args.action == "show":
        _show(_get_named(args.name), as_json=args.json)
    else:
        _list([get_device(name) for name in device_names()], as_json=args.json)
    return 0


def _get_named(name: str) -> Device:
    try:
        return get_device(name)
    except InputError as error:
        # The catalogue speaks of a scenario's field; here the name came from the command line.
        raise InputError("NAME", error.given, error.allowed) from None


def _list(devices: Sequence[Device], *, as_json: bool) -> None:
    if as_json:
        for device in devices:
            described = describe(device)
            del described["sources"]
            write_json_line(described)
        return
    console = Console()
    console.print(list_table(devices))
    console.print(LIST_NOTE)


def _show(device: Device, *, as_json: bool) -> None:
    if as_json:
        write_json_line(describe(device))
        return
    print_device(Console(), device)
