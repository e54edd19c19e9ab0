"""`asap serve`: the API, the pages and the workers; --help lists every setting."""

import os
import sys
from argparse import ArgumentParser, Namespace

from pydantic import SecretStr
from pydantic_core import PydanticUndefined

from service.cli.io import write_json
from service.cli.parser import port_number
from service.settings import PREFIX, Settings

HELP = """\
Serve the API under /v1 and run the sessions that are submitted to it.

Everything lives in one folder (ASAP_DATA_DIR, .asap): SQLite for sessions and the queue, Chroma for
what was learnt, uploaded traces. A session that was accepted survives any restart.

Several machines share PostgreSQL (ASAP_DATABASE_URL), a Chroma server (ASAP_CHROMA_URL) and a folder
for traces (ASAP_TRACES_DIR). Then any number of processes may run: --role api answers callers, --role
worker runs sessions (its port answers /healthz, /readyz and /metrics only), --role all does both.

Without an API key the server listens on loopback only, and everyone on the machine may do everything.
'asap keys add NAME --scope submit' makes a key; callers send 'Authorization: Bearer KEY'.

/openapi.json describes the API; /healthz, /readyz and /metrics are for load balancers and Prometheus.
Logs are JSON lines on standard error. SIGTERM stops: sessions that do not end within ASAP_SHUTDOWN_S
seconds are handed back, and go on when a worker is there.

Examples:
  asap serve
  asap sessions submit examples/llama-3.1-70b-64xh100.json --wait
  curl -sN localhost:8000/v1/sessions/ID/events
  asap serve --host 0.0.0.0 --role api"""
ROLES = ("all", "api", "worker")
COLUMN = 34


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=port_number, default=8000, help="the port (8000); 0 takes a free one")
    parser.add_argument("--role", choices=ROLES, default="all", help="what this process does (all)")
    parser.add_argument("--json", action="store_true", help="print one JSON object when it listens")
    parser.epilog = settings_table()


def run(args: Namespace) -> int:
    from service.logs import configure_logs
    from service.server import serve
    from service.settings import load_settings

    settings = load_settings()
    configure_logs(settings)

    def announce(address: str) -> None:
        if args.json:
            write_json({"address": address, "role": args.role, "pid": os.getpid()})
            sys.stdout.flush()
        elif sys.stdout.isatty():  # a person, who should not have to find it among the logs
            print(f"asap: open {address}", flush=True)

    return 0 if serve(settings, args.host, args.port, args.role, announce) else 1


def settings_table() -> str:
    """From the definitions themselves, so that nothing is missing."""
    lines = ["settings, from the environment or a file .env:"]
    for name, field in Settings.model_fields.items():
        default = "" if field.default in (None, PydanticUndefined) else str(field.default)
        shown = "(set)" if isinstance(field.default, SecretStr) else default
        variable = f"{PREFIX}{name.upper()}" + (f"={shown}" if shown else "")
        lines.append(f"  {variable:<{COLUMN}} {field.description or ''}".rstrip())
    return "\n".join(lines)
