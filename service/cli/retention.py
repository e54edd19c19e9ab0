"""`asap retention`: what has expired, before workers delete it."""

import sys
import time
from argparse import ArgumentParser, Namespace
from dataclasses import asdict

from service.cli.io import write_json
from service.cli.keys import opened_database

HELP = """\
Show what of this installation has expired: a dry run of what its workers delete every ten minutes.

Days are set by ASAP_SESSION_DAYS, ASAP_DETAIL_DAYS (events and checkpoints), ASAP_AUDIT_DAYS and
ASAP_TRACE_DAYS, for one tenant by ASAP_TENANT_DAYS='[["research", "sessions", 90]]'. Set them here
first, then for the server.

Examples:
  ASAP_SESSION_DAYS=180 ASAP_DETAIL_DAYS=30 asap retention
  asap retention --delete"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object per line and nothing else")
    parser.add_argument("--delete", action="store_true", help="delete it now instead of waiting for a worker")


def run(args: Namespace) -> None:
    from service.retention import delete_expired, find_expired
    from service.settings import DAY_S, load_settings

    settings = load_settings()
    with opened_database(settings) as database:
        with database.read() as conn:
            found = find_expired(settings, conn, time.time())
        if args.delete:
            delete_expired(settings, database)
    if args.json:
        for each in found:
            write_json(asdict(each))
        return
    for each in found:
        days = f"{(time.time() - each.oldest_at) / DAY_S:.0f} days"
        owner = each.tenant or "(default)"
        sys.stdout.write(f"{owner}: {each.count:,} {each.kind} over {each.days} days, the oldest {days}\n")
    if not found:
        sys.stdout.write("nothing has expired\n")
