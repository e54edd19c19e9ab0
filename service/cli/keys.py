"""`asap keys`: the API keys of this installation, in its database rather than through a server."""

import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from service.cli.io import make_table, write_json, write_note
from service.cli.parser import add_action, add_actions
from tools.errors import InputError

if TYPE_CHECKING:
    from service.access.store import KeyRow
    from service.db.engine import Database
    from service.settings import Settings

HELP = """\
Make, list and revoke the keys that callers of 'asap serve' send as 'Authorization: Bearer KEY'.

A key belongs to a tenant and sees only that tenant's sessions, traces and cases. Its scopes:
  read      see sessions, reports, traces and knowledge; predict
  submit    submit, cancel, retry and delete sessions; upload traces; search plans; add cases
  approve   decide on proposals; mark cases
  admin     all of it, for its tenant; also the tenant's audit log
  operator  all of it; also folders of the server as traces (below ASAP_TRACE_ROOTS), and the metrics

The key is shown once, when it is made: only its digest is kept. Every change is in the audit log.
The first key closes the server: from then on every caller needs one, even if all are revoked.

Examples:
  asap keys add platform --scope submit --tenant research
  asap keys add alice --scope read --scope approve --days 90
  asap keys revoke 3f0c4a51e1b6"""
WHO = "command line"
DAY_S = 86_400.0


def add_arguments(parser: ArgumentParser) -> None:
    actions = add_actions(parser)
    adding = add_action(actions, "add", "make a key and show it once", add)
    adding.add_argument("name", metavar="NAME", help="who will use it; sessions show it as their owner")
    scopes = "read, submit, approve, admin or operator; may be repeated (read)"
    adding.add_argument("--scope", action="append", default=[], metavar="SCOPE", help=scopes)
    adding.add_argument("--tenant", default="", metavar="NAME", help="whose things it sees (the default one)")
    adding.add_argument("--days", type=float, metavar="N", help="days until the key expires (default: never)")
    add_action(actions, "list", "every key, without its secret", list_all)
    revoking = add_action(actions, "revoke", "make a key useless at once", revoke)
    revoking.add_argument("id", metavar="ID", help="the part of the key after 'asap_', or the whole key")


def run(args: Namespace) -> None:
    from service.settings import load_settings

    with opened_database(load_settings()) as database:
        args.act(database, args)


def add(database: "Database", args: Namespace) -> None:
    from service.access.auth import SCOPES, check_tenant
    from service.access.credentials import new_key
    from service.access.store import add_key, record

    tenant, name, chosen = check_tenant(args.tenant, "--tenant"), args.name, args.scope
    for scope in chosen:
        if scope not in SCOPES:
            raise InputError("--scope", scope, f"allowed: {', '.join(SCOPES)}")
    # Whoever may change a thing may look at it.
    scopes = [scope for scope in SCOPES if scope == "read" or scope in chosen]
    if not 1 <= len(name) <= 100 or not name.isprintable():
        raise InputError("NAME", name, "allowed: a printable text of at most 100 characters")
    if args.days is not None and not 0 < args.days <= 36_500:
        raise InputError("--days", args.days, "allowed: a number above 0, at most 36500")
    expires_at = None if args.days is None else time.time() + args.days * DAY_S
    key = new_key()
    with database.begin() as conn:
        add_key(conn, key.id, key.digest, name, scopes, tenant, expires_at)
        record(conn, tenant, WHO, "key.add", key.id, name=name, scopes=[*scopes], expires_at=expires_at)
    if args.json:
        write_json({"id": key.id, "key": key.text, "name": name, "tenant": tenant, "scopes": scopes})
        return
    sys.stdout.write(f"{key.text}\n")
    write_note("keep it now, it cannot be shown again; callers send 'Authorization: Bearer KEY'")


def list_all(database: "Database", args: Namespace) -> None:
    from service.access.store import list_keys

    with database.read() as conn:
        rows = list_keys(conn)
    if args.json:
        for row in rows:
            shown = {name: value for name, value in vars(row).items() if name != "digest"}
            write_json(shown | {"state": _state(row)})
        return
    from rich.console import Console

    columns = ("id", "name", "tenant", "scopes", "made", "used", "state")
    cells = (
        (
            *(row.id, row.name, row.tenant or "(default)", ", ".join(row.scopes)),
            *(_day(row.created_at), _day(row.used_at), _state(row)),
        )
        for row in rows
    )
    table = make_table(*columns, rows=cells, wraps=columns)
    Console().print(table if rows else "no keys: the server answers its own machine only, without asking")


def revoke(database: "Database", args: Namespace) -> None:
    from service.access.credentials import find_id
    from service.access.store import find_key, record, revoke_key
    from service.errors import NotFoundError

    id = find_id(args.id) or args.id
    with database.begin() as conn:
        try:
            revoke_key(conn, id)
        except NotFoundError:
            raise InputError("ID", id, "is not a key of this installation; see 'asap keys list'") from None
        row = find_key(conn, id)
        record(conn, row.tenant if row else "", WHO, "key.revoke", id)
    if args.json:
        write_json({"id": id, "revoked": True})
    else:
        sys.stdout.write(f"{id} is revoked\n")


def _state(row: "KeyRow") -> str:
    if row.revoked_at is not None:
        return "revoked"
    return "valid" if row.is_valid(time.time()) else "expired"


def _day(at_s: float | None) -> str:
    return "never" if at_s is None else datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d")


@contextmanager
def opened_database(settings: "Settings") -> "Iterator[Database]":
    from service.db.engine import open_database
    from service.db.locks import upgrade_lock

    with closing(open_database(settings.database)) as database:
        with upgrade_lock(settings):
            database.upgrade()
        yield database
