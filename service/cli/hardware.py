"""`asap hardware`: what the catalogue knows, and from where.

Prints only; the figures and their checks are `tools.hardware`'s. With `--json` a device has the shape
of its data file, so that any of its figures can be copied into `cluster.overrides`.
"""

from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Sequence

from service.cli.io import write_json_line
from tools.errors import InputError
from tools.hardware import Device, describe, device_names, get_device

HELP = "List the accelerators that ASAP knows, or show one with the source of every figure."


def add_arguments(parser: ArgumentParser) -> None:
    """The two actions and their options."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="one line for each device", allow_abbrev=False)
    showing = actions.add_parser("show", help="every figure of one device and its source", allow_abbrev=False)
    showing.add_argument("name", metavar="NAME", help="a name or an alias, for instance h100-sxm-80gb")
    for action in (listing, showing):
        action.add_argument("--json", action="store_true", help="print one JSON object a line")
        # Known to `asap hardware` already; suppressed here so that the outer one keeps its value.
        action.add_argument("--debug", action="store_true", default=SUPPRESS, help=SUPPRESS)


def run(args: Namespace) -> int:
    """Print the list, or the one device; a name that is not known is the only thing to go wrong."""
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
    from rich.console import Console

    from service.cli.hardware_tables import LIST_NOTE, list_table

    console = Console()
    console.print(list_table(devices))
    console.print(LIST_NOTE)


def _show(device: Device, *, as_json: bool) -> None:
    if as_json:
        write_json_line(describe(device))
        return
    from rich.console import Console

    from service.cli.hardware_tables import print_device

    print_device(Console(), device)
