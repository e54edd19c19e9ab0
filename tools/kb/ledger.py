"""The memory of cases as an append-only ledger: what was added and how it was marked.

Invalid input is an InputError; nothing is changed or deleted.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar

from pydantic import JsonValue

from tools.errors import InputError
from tools.kb.entries import (
    SHARED,
    STATUSES,
    Case,
    Change,
    Entry,
    Status,
    case_entry,
    check_size,
    parse_case,
    shared_case,
)
from tools.kb.fields import (
    MAX_LINE_CHARACTERS,
    MAX_TEXT_CHARACTERS,
    JsonTable,
    KnowledgeRecord,
    parse_as,
    slug_fault,
    text_fault,
)
from tools.scenario.fields import JsonObject


class _Body(KnowledgeRecord):
    def as_json(self) -> JsonObject:
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


class AddedCase(_Body):
    """A case as it came in."""

    case: Case
    at: str
    by: str


class Mark(_Body, Change):
    """A change of the status of the case with this id."""

    id: str


Body = TypeVar("Body", bound=AddedCase | Mark, covariant=True)


class LedgerRecord(NamedTuple, Generic[Body]):
    """One line of the ledger."""

    key: str
    tenant: str | None
    body: Body

    @property
    def kind(self) -> Literal["case", "mark"]:
        return "case" if isinstance(self.body, AddedCase) else "mark"


AnyRecord = LedgerRecord[AddedCase | Mark]


class CaseStore(Protocol):
    """Keeps records. Any number of readers and writers."""

    def size(self) -> int:
        """The number of records; grows with every new one."""

    def read(self, tenants: Sequence[str | None] | None, skip: int = 0) -> list[AnyRecord]:
        """The records of these tenants (None: the default one's), or all without a list; the oldest first,
        without the first `skip`."""

    def find(self, key: str) -> AnyRecord | None:
        """The record with this key."""

    def append(self, record: AnyRecord) -> AnyRecord:
        """Adds a record unless its key exists; returns the stored one."""

    def close(self) -> None:
        """Releases files and connections."""


def visible_entries(seed: Iterable[Entry], records: Sequence[AnyRecord], tenant: str | None) -> list[Entry]:
    """One entry per id, each with its present status: the seed, what the records of others share if there are
    any, and the tenant's own.
    """
    others = [record for record in records if record.tenant != tenant]
    own = [record for record in records if record.tenant == tenant]
    entries = {entry.id: entry for entry in (*seed, *_shared_entries(others), *stored_entries(own))}
    return list(_marked(entries, own).values())


ASAP = "asap"
"""Who adds what a session advised."""
MAX_ADVICE = 100


def without_old_advice(entries: Sequence[Entry]) -> list[Entry]:
    """All but the older of what sessions advised and nobody measured or marked: a platform that asks about
    thousands of workloads would fill the memory with predictions. Each can still be read by its id."""
    advised = [entry.id for entry in entries if _is_unmeasured_advice(entry)]
    old = set(advised[:-MAX_ADVICE])
    return [entry for entry in entries if entry.id not in old]


def _is_unmeasured_advice(entry: Entry) -> bool:
    is_untouched = [change.by for change in entry.history] == [ASAP] and entry.status == "hypothesis"
    return is_untouched and isinstance(entry.body, Case) and entry.body.measured is None


def _shared_entries(records: Sequence[AnyRecord]) -> list[Entry]:
    """With the status that each owner gave its case."""
    shared = []
    for owner in dict.fromkeys(record.tenant for record in records):
        theirs = [record for record in records if record.tenant == owner]
        for entry in _marked({entry.id: entry for entry in stored_entries(theirs)}, theirs).values():
            assert isinstance(entry.body, Case)
            case = shared_case(entry.body.model_copy(update={"status": entry.status}), entry.key)
            if case is not None:
                shared.append(case_entry(case, SHARED))
    return shared


def _marked(entries: dict[str, Entry], records: Sequence[AnyRecord]) -> dict[str, Entry]:
    marks = [(record.body, record.key) for record in records if isinstance(record.body, Mark)]
    for mark, _ in sorted(marks, key=lambda item: (item[0].at, item[1])):
        if mark.id in entries:
            entries[mark.id] = _apply(mark, entries[mark.id])
    return entries


def stored_entries(records: Iterable[AnyRecord]) -> list[Entry]:
    """The cases among the records as they came in, oldest first."""
    added = [(record.body, record) for record in records if isinstance(record.body, AddedCase)]
    added.sort(key=lambda item: (item[0].at, item[1].key))
    return [_added_entry(body, record.tenant) for body, record in added]


def _added_entry(added: AddedCase, tenant: str | None) -> Entry:
    first = {"at": added.at, "by": added.by, "from": None, "to": added.case.status, "reason": "added"}
    return case_entry(added.case, tenant, history=(Change.model_validate(first),))


def _apply(mark: Mark, entry: Entry) -> Entry:
    body = entry.body
    if mark.measured is not None:
        body = body.model_copy(update={"measured": mark.measured})
    data = mark.as_json()
    change = Change.model_validate({name: value for name, value in data.items() if name != "id"})
    return replace(entry, status=mark.to, body=body, history=(*entry.history, change))


def check_text(
    field: str, value: object, max_characters: int = MAX_TEXT_CHARACTERS, *, empty: bool = False
) -> None:
    if fault := text_fault(value, max_characters, empty=empty):
        raise InputError(field, value, fault)


def check_tenant(tenant: str | None) -> None:
    if tenant is not None and (fault := slug_fault(tenant)):
        raise InputError("tenant", tenant, fault)


def case_record(
    case: Mapping[str, JsonValue], by: str, tenant: str | None, now: datetime
) -> LedgerRecord[AddedCase]:
    """A case as it comes in, with who added it and when."""
    check_tenant(tenant)
    check_text("by", by, MAX_LINE_CHARACTERS)
    added = AddedCase(case=parse_case(dict(case)), at=_instant(now), by=by)
    return LedgerRecord(case_key(tenant, added.case.id), tenant, added)


def case_key(tenant: str | None, id: str) -> str:
    return f"case:{tenant or ''}/{id}"


class _Measured(KnowledgeRecord):
    measured: JsonTable


def mark_record(
    entry: Entry,
    status: Status,
    by: str,
    reason: str,
    tenant: str | None,
    now: datetime,
    measured: Mapping[str, JsonValue] | None,
) -> LedgerRecord[Mark] | None:
    """The mark that changes the status of this case; None if its last change is the same."""
    if entry.kind != "case":
        raise InputError("id", entry.id, "is a playbook; only a case has a status to change")
    if status not in STATUSES:
        raise InputError("status", status, f"must be one of {', '.join(STATUSES)}")
    check_text("by", by, MAX_LINE_CHARACTERS)
    check_text("reason", reason)
    stated: JsonObject = {"to": status, "by": by, "reason": reason}
    if measured is not None:
        stated["measured"] = parse_as(_Measured, {"measured": dict(measured)}).measured
        check_size("measured", stated["measured"])
    last = entry.history[-1] if entry.history else None
    if last is not None and all(getattr(last, name) == value for name, value in stated.items()):
        return None
    body: JsonObject = {
        "id": entry.id,
        "at": _after(last.at if last else None, now),
        "from": entry.status,
        **stated,
    }
    digest = sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:12]
    return LedgerRecord(
        f"mark:{tenant or ''}/{entry.id}/{body['at']}/{digest}", tenant, Mark.model_validate(body)
    )


def _instant(moment: datetime) -> str:
    """In UTC and always of one length, so that the order of the texts is the order of time."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def _after(last: str | None, now: datetime) -> str:
    """Now, but after the last mark, even if the clock of its author is ahead."""
    if last is None:
        return _instant(now)
    return max(_instant(now), _instant(datetime.fromisoformat(last) + timedelta(microseconds=1)))
