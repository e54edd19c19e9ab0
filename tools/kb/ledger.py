"""The memory of cases as an append-only ledger: what was added and how it was marked.

Invalid input is an InputError; nothing is changed or deleted.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Literal, NamedTuple, Protocol

from tools.errors import InputError
from tools.kb.entries import STATUSES, Check, Entry, Fault, line, one_of, plain_table, prose, slug
from tools.kb.seed import case_entry, check_own_case, check_size


class Record(NamedTuple):
    """One line of the ledger."""

    key: str
    kind: Literal["case", "mark"]
    tenant: str | None
    body: dict[str, Any]
    """Of a case: case, at, by. Of a mark: id, at, by, from, to, reason, and measured where there is that."""


class CaseStore(Protocol):
    """Keeps records. Any number of readers and writers."""

    def size(self) -> int:
        """How many records there are; it grows with every new one."""

    def read(self, tenants: Sequence[str | None] | None) -> list[Record]:
        """The records of these tenants, None among them for the public ones; of all without a list."""

    def append(self, record: Record) -> Record:
        """Adds a record, or leaves the one that has its key already; returns the one that is kept."""

    def close(self) -> None:
        """Lets go of files and connections."""


def visible_entries(seed: Iterable[Entry], records: Sequence[Record], tenant: str | None) -> list[Entry]:
    """What this tenant sees: one entry an id, its own before a public one, each with its present status."""
    entries = {entry.id: entry for entry in seed}
    for scope in dict.fromkeys((None, tenant)):
        own = [record for record in records if record.tenant == scope]
        entries |= {entry.id: entry for entry in stored_entries(own)}
        marks = (record for record in own if record.kind == "mark")
        for mark in sorted(marks, key=lambda record: (record.body["at"], record.key)):
            if mark.body["id"] in entries:
                entries[mark.body["id"]] = _marked(entries[mark.body["id"]], mark.body)
    return list(entries.values())


def stored_entries(records: Iterable[Record]) -> list[Entry]:
    """The cases among the records as they came in, oldest first."""
    cases = [record for record in records if record.kind == "case"]
    return [_added(record) for record in sorted(cases, key=lambda record: (record.body["at"], record.key))]


def _added(record: Record) -> Entry:
    entry = case_entry(record.body["case"], record.tenant)
    first = {
        "at": record.body["at"],
        "by": record.body["by"],
        "from": None,
        "to": entry.status,
        "reason": "added",
    }
    return replace(entry, body={**entry.body, "status": entry.status, "history": [first]})


def _marked(entry: Entry, mark: dict[str, Any]) -> Entry:
    item = {key: value for key, value in mark.items() if key != "id"}
    body = {**entry.body, "status": mark["to"], "history": [*entry.body.get("history", []), item]}
    if "measured" in mark:
        body["measured"] = mark["measured"]
    return replace(entry, status=mark["to"], body=body)


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
