"""`asap hardware`: what the catalogue knows, and from where.

Prints only; the figures and their checks are `tools.hardware`'s. With `--json` a device has the shape
of its data file, so that any of its figures can be copied into `cluster.overrides`.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from service.cli.io import write_json_line
from service.cli.parser import add_action
from tools.errors import InputError
from tools.hardware import Device, describe, device_names, get_device

HELP = """\
List the accelerators that ASAP knows, or show one with the source of every figure.

The name is what `cluster.device` of a scenario says. A figure that differs in your cluster is replaced in
`cluster.overrides`, under the name that 'show' prints.

Examples:
  asap hardware list
  asap hardware show h100
  asap hardware list --json | jq -r .name"""


def add_arguments(parser: ArgumentParser) -> None:
    """The two actions and their options."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    add_action(actions, "list", "one line for each device")
    showing = add_action(actions, "show", "every figure of one device and its source")
    showing.add_argument("name", metavar="NAME", help="a name or an alias, for instance h100-sxm-80gb")


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
