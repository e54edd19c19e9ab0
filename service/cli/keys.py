"""`asap keys`: the API keys of this installation, in its database rather than through a server."""

import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from service.cli.io import make_table, safe_text, write_json_line
from service.cli.parser import add_action
from service.strict_json import JsonObject
from tools.errors import InputError

if TYPE_CHECKING:
    from service.db.access import KeyRow
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
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    adding = add_action(actions, "add", "make a key and show it once")
    adding.add_argument("name", metavar="NAME", help="who will use it; sessions show it as their owner")
    adding.add_argument(
        "--scope",
        action="append",
        metavar="SCOPE",
        help="read, submit, approve, admin or operator; may be repeated (read)",
    )
    adding.add_argument("--tenant", default="", metavar="NAME", help="whose things it sees (the default one)")
    adding.add_argument("--days", type=float, metavar="N", help="days until the key expires (default: never)")
    add_action(actions, "list", "every key, without its secret")
    revoking = add_action(actions, "revoke", "make a key useless at once")
    revoking.add_argument("id", metavar="ID", help="the part of the key after 'asap_', or the whole key")


def run(args: Namespace) -> int:
    from service.settings import load_settings

    with opened_database(load_settings()) as database:
        {"add": _add, "list": _list, "revoke": _revoke}[args.action](database, args)
    return 0


def _add(database: "Database", args: Namespace) -> None:
    from service.auth import check_tenant, new_key
    from service.db.access import add_key, record

    tenant, scopes, name = check_tenant(args.tenant, "--tenant"), _scopes(args.scope), _name(args.name)
    expires_at = _expiry(args.days)
    key = new_key()
    with database.begin() as conn:
        add_key(conn, key.id, key.digest, name, scopes, tenant, expires_at)
        record(conn, tenant, WHO, "key.add", key.id, name=name, scopes=scopes, expires_at=expires_at)
    if args.json:
        write_json_line({"id": key.id, "key": key.text, "name": name, "tenant": tenant, "scopes": scopes})
        return
    sys.stdout.write(f"{key.text}\n")
    sys.stderr.write(
        "asap: keep it now, it cannot be shown again; callers send 'Authorization: Bearer KEY'\n"
    )


def _list(database: "Database", args: Namespace) -> None:
    from service.db.access import list_keys

    with database.read() as conn:
        rows = list_keys(conn)
    if args.json:
        for row in rows:
            write_json_line(_public(row))
        return
    from rich.console import Console

    columns = ("id", "name", "tenant", "scopes", "made", "used", "state")
    table = make_table(*columns, wraps=columns)
    for row in rows:
        words = (row.id, row.name, row.tenant or "(default)", ", ".join(row.scopes))
        table.add_row(*map(safe_text, words), _day(row.created_at), _day(row.used_at), _state(row))
    Console().print(table if rows else "no keys: the server answers its own machine only, without asking")


def _revoke(database: "Database", args: Namespace) -> None:
    from service.auth import find_id
    from service.db.access import find_key, record, revoke_key
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
        write_json_line({"id": id, "revoked": True})
    else:
        sys.stdout.write(f"{id} is revoked\n")


def _scopes(names: list[str] | None) -> list[str]:
    from service.auth import SCOPES

    for scope in names or []:
        if scope not in SCOPES:
            raise InputError("--scope", scope, f"allowed: {', '.join(SCOPES)}")
    # Whoever may change a thing may look at it.
    return [scope for scope in SCOPES if scope == "read" or scope in (names or [])]


def _name(name: str) -> str:
    if not 1 <= len(name) <= 100 or not name.isprintable():
        raise InputError("NAME", name, "allowed: a printable text of at most 100 characters")
    return name


def _expiry(days: float | None) -> float | None:
    if days is None:
        return None
    if not 0 < days <= 36_500:
        raise InputError("--days", days, "allowed: a number above 0, at most 36500")
    return time.time() + days * DAY_S


def _public(row: "KeyRow") -> JsonObject:
    hidden = ("digest",)
    return {name: value for name, value in vars(row).items() if name not in hidden} | {"state": _state(row)}


def _state(row: "KeyRow") -> str:
    if row.revoked_at is not None:
        return "revoked"
    return "valid" if row.is_valid(time.time()) else "expired"


def _day(at_s: float | None) -> str:
    return "never" if at_s is None else datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d")


@contextmanager
def opened_database(settings: "Settings") -> "Iterator[Database]":
    from service.db.engine import open_database, upgrade_lock

    database = open_database(settings.database)
    try:
        with upgrade_lock(settings):
            database.upgrade()
        yield database
    finally:
        database.close()
