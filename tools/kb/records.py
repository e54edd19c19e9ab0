"""From what a caller wants to remember to a record of the ledger; what is wrong with it is an InputError."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

from tools.errors import InputError
from tools.kb.cases import check_own_case, check_size
from tools.kb.entry import STATUSES, Entry
from tools.kb.ledger import Record
from tools.kb.shape import Check, Fault, line, one_of, plain_table, prose, slug


def check_input(check: Check, field: str, value: object) -> None:
    """Runs a check on what a caller gave."""
    try:
        check(field, value)
    except Fault as fault:
        raise InputError(fault.field, fault.given, fault.allowed) from None


def check_tenant(tenant: str | None) -> None:
    if tenant is not None:
        check_input(slug, "tenant", tenant)


def case_record(case: Mapping[str, Any], by: str, tenant: str | None, now: datetime) -> Record:
    """A case as it comes in, with who brought it and when."""
    check_tenant(tenant)
    check_input(line, "by", by)
    check_input(check_own_case, "", dict(case))
    body = {"case": json.loads(json.dumps(dict(case))), "at": _instant(now), "by": by}
    return Record(f"case:{tenant or ''}/{case['id']}", "case", tenant, body)


def mark_record(
    entry: Entry,
    status: str,
    by: str,
    reason: str,
    tenant: str | None,
    now: datetime,
    measured: Mapping[str, Any] | None,
) -> Record | None:
    """The mark that gives this case another status; None when its last mark says the same already."""
    if entry.kind != "case":
        raise InputError("id", entry.id, "is a playbook; only a case has a status to change")
    check_input(one_of(*STATUSES), "status", status)
    check_input(line, "by", by)
    check_input(prose, "reason", reason)
    said: dict[str, Any] = {"to": status, "by": by, "reason": reason}
    if measured is not None:
        check_input(plain_table, "measured", dict(measured))
        check_input(check_size, "measured", dict(measured))
        said["measured"] = json.loads(json.dumps(dict(measured)))
    last = (entry.body.get("history") or [{}])[-1]
    if all(last.get(key) == value for key, value in said.items()):
        return None
    body = {"id": entry.id, "at": _after(last.get("at"), now), "from": entry.status, **said}
    digest = sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:12]
    return Record(f"mark:{tenant or ''}/{entry.id}/{body['at']}/{digest}", "mark", tenant, body)


def _instant(moment: datetime) -> str:
    """In UTC and always of one length, so that the order of the texts is the order of time."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def _after(last: str | None, now: datetime) -> str:
    """Now, but after the last mark, even if the clock of whoever made that one runs ahead."""
    if last is None:
        return _instant(now)
    return max(_instant(now), _instant(datetime.fromisoformat(last) + timedelta(microseconds=1)))
