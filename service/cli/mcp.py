"""`asap mcp`: ASAP's tools for an assistant, over the Model Context Protocol."""

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from service.cli.io import write_json, write_note
from service.cli.parser import port_number
from tools.errors import InputError

HELP = """\
Give an assistant ASAP's tools over the Model Context Protocol. They predict, search, compare and explain
plans, read, write and patch configurations, diagnose traces, answer questions about a report, and look up
runs, knowledge and devices. They compute on this machine, write nothing and run no command.

An assistant that starts its servers itself (Claude, Cursor, VS Code) speaks on standard input and output:
  {"mcpServers": {"asap": {"command": "asap", "args": ["mcp", "--folder", "/path/to/job"]}}}

With --port it is served as streamable HTTP, on loopback only: there is no key.

Examples:
  asap mcp
  asap mcp --port 8100"""


def add_arguments(parser: ArgumentParser) -> None:
    folder = "folder of the traces, scripts, configurations and logs that may be read (.)"
    parser.add_argument("--folder", metavar="DIR", type=Path, default=Path(), help=folder)
    parser.add_argument("--port", type=port_number, help="serve HTTP on this port; 0 takes a free one")
    parser.add_argument("--json", action="store_true", help="print the address as one JSON object")


def run(args: Namespace) -> None:
    if not args.folder.is_dir():
        raise InputError("--folder", str(args.folder), "must be a folder")
    from service.logs import configure_logs
    from service.mcp import make_server, serve_http
    from service.settings import load_settings

    def announce(address: str) -> None:
        if args.json:
            write_json({"address": address})
            sys.stdout.flush()
        else:
            write_note(address)
            sys.stderr.flush()

    settings = load_settings()
    configure_logs(settings)
    server = make_server(settings, args.folder)
    if args.port is None:
        server.run()
    else:
        serve_http(server, args.port, announce)
