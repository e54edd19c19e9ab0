"""`asap mcp`: ASAP's tools for an assistant, over the Model Context Protocol."""

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from service.cli.io import write_json_line
from service.cli.parser import port_number
from tools.errors import InputError

HELP = """\
Give an assistant ASAP's tools over the Model Context Protocol: predict, optimize, explain_plan, export_plan,
diagnose, search_knowledge. They compute on this machine, write nothing and run no command.

An assistant that starts its servers itself (Claude, Cursor, VS Code) speaks on standard input and output:
  {"mcpServers": {"asap": {"command": "asap", "args": ["mcp", "--folder", "/path/to/traces"]}}}

With --port it is served as streamable HTTP, on loopback only: there is no key.

Examples:
  asap mcp
  asap mcp --port 8100"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--folder", metavar="DIR", type=Path, default=Path(), help="folder that contains the traces (.)"
    )
    parser.add_argument("--port", type=port_number, help="serve HTTP on this port; 0 takes a free one")
    parser.add_argument("--json", action="store_true", help="print the address as one JSON object")


def run(args: Namespace) -> int:
    if not args.folder.is_dir():
        raise InputError("--folder", str(args.folder), "must be a folder")
    from service.logs import configure_logs
    from service.mcp import make_server, serve_http
    from service.settings import load_settings

    settings = load_settings()
    configure_logs(settings)
    server = make_server(settings, args.folder)
    if args.port is None:
        server.run()
    else:
        serve_http(server, args.port, lambda address: _announce(address, as_json=args.json))
    return 0


def _announce(address: str, *, as_json: bool) -> None:
    if as_json:
        write_json_line({"address": address})
        sys.stdout.flush()
    else:
        print(f"asap: {address}", file=sys.stderr, flush=True)
