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
    Entry,
    EntryStatus,
    StatusChange,
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
    slug_fault,
    text_fault,
)
from tools.scenario.fields import build

ASAP = "asap"
"""Who adds what a session advised."""
MAX_ADVICE = 100


class AddedCase(KnowledgeRecord):
    case: Case
    at: str
    by: str


class Mark(StatusChange):
    """A change of the status of the case with this id."""

    id: str


BodyT = TypeVar("BodyT", bound=AddedCase | Mark, covariant=True)


class LedgerRecord(NamedTuple, Generic[BodyT]):
    key: str
    tenant: str | None
    body: BodyT

    @property
    def kind(self) -> Literal["case", "mark"]:
        return "case" if isinstance(self.body, AddedCase) else "mark"


AnyRecord = LedgerRecord[AddedCase | Mark]


class CaseStore(Protocol):
    """Keeps records. Any number of readers and writers."""

    def size(self) -> int:
        """The number of records; grows with every new one."""

    def read(self, tenants: Sequence[str | None] | None, skip: int = 0) -> list[AnyRecord]:
        """What these tenants (None: the default one) have, all without a list; oldest first, after `skip`."""

    def find(self, key: str) -> AnyRecord | None:
        """The record with this key."""

    def append(self, record: AnyRecord) -> AnyRecord:
        """Adds a record unless its key exists; returns the stored one."""

    def close(self) -> None:
        """Releases files and connections."""


def visible_entries(seed: Iterable[Entry], records: Sequence[AnyRecord], tenant: str | None) -> list[Entry]:
    """One entry per id, each with its present status: the seed, what the records of others share if there are
    any (with the status that each owner gave its case), and the tenant's own.
    """
    shared = []
    for owner in dict.fromkeys(record.tenant for record in records if record.tenant != tenant):
        theirs = [record for record in records if record.tenant == owner]
        for entry in _marked(stored_entries(theirs), theirs):
            assert isinstance(entry.body, Case)
            case = shared_case(entry.body.model_copy(update={"status": entry.status}), entry.key)
            shared += [] if case is None else [case_entry(case, SHARED)]
    own = [record for record in records if record.tenant == tenant]
    return _marked([*seed, *shared, *stored_entries(own)], own)


def without_old_advice(entries: Sequence[Entry]) -> list[Entry]:
    """All but the older of what sessions advised and nobody measured or marked: a platform that asks about
    thousands of workloads would fill the memory with predictions. Each can still be read by its id."""
    advised = [
        entry.id
        for entry in entries
        if entry.status == "hypothesis"
        and [change.by for change in entry.history] == [ASAP]
        and isinstance(entry.body, Case)
        and entry.body.measured is None
    ]
    old = set(advised[:-MAX_ADVICE])
    return [entry for entry in entries if entry.id not in old]


def _marked(entries: Iterable[Entry], records: Sequence[AnyRecord]) -> list[Entry]:
    """The last entry of each id, with the marks among the records."""
    by_id = {entry.id: entry for entry in entries}
    marks = [(record.body, record.key) for record in records if isinstance(record.body, Mark)]
    for mark, _ in sorted(marks, key=lambda item: (item[0].at, item[1])):
        if entry := by_id.get(mark.id):
            update = {} if mark.measured is None else {"measured": mark.measured}
            stated = mark.model_dump(by_alias=True, exclude_unset=True, exclude={"id"})
            history = (*entry.history, StatusChange.model_validate(stated))
            body = entry.body.model_copy(update=update)
            by_id[mark.id] = replace(entry, status=mark.to, body=body, history=history)
    return list(by_id.values())


def stored_entries(records: Iterable[AnyRecord]) -> list[Entry]:
    """The cases among the records as they came in, oldest first."""
    added = [(record.body, record) for record in records if isinstance(record.body, AddedCase)]
    entries = []
    for body, record in sorted(added, key=lambda item: (item[0].at, item[1].key)):
        first = {"at": body.at, "by": body.by, "from": None, "to": body.case.status, "reason": "added"}
        entries.append(case_entry(body.case, record.tenant, history=(StatusChange.model_validate(first),)))
    return entries


def check_text(
    field: str, value: object, max_characters: int = MAX_TEXT_CHARACTERS, *, empty: bool = False
) -> None:
    if fault := text_fault(value, max_characters, empty=empty):
        raise InputError(field, value, fault)


def check_tenant(tenant: str | None) -> None:
    if tenant is not None and (fault := slug_fault(tenant)):
        raise InputError("tenant", tenant, fault)


def case_record(case: object, by: str, tenant: str | None, now: datetime) -> LedgerRecord[AddedCase]:
    """A case as it comes in, with who added it and when."""
    check_tenant(tenant)
    check_text("by", by, MAX_LINE_CHARACTERS)
    added = AddedCase(case=parse_case(case), at=_instant(now), by=by)
    return LedgerRecord(case_key(tenant, added.case.id), tenant, added)


def case_key(tenant: str | None, id: str) -> str:
    return f"case:{tenant or ''}/{id}"


def mark_record(
    entry: Entry,
    status: EntryStatus,
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
    stated: dict[str, JsonValue] = {"to": status, "by": by, "reason": reason}
    if measured is not None:
        stated["measured"] = dict(measured)
        build(_Measured, {"measured": stated["measured"]})
        check_size("measured", stated["measured"])
    last = entry.history[-1] if entry.history else None
    if last is not None and all(getattr(last, name) == value for name, value in stated.items()):
        return None
    # After the last mark, even if the clock of its author is ahead.
    after = _instant(datetime.fromisoformat(last.at) + timedelta(microseconds=1)) if last else ""
    at = max(_instant(now), after)
    body: dict[str, JsonValue] = {"id": entry.id, "at": at, "from": entry.status, **stated}
    digest = sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:12]
    return LedgerRecord(f"mark:{tenant or ''}/{entry.id}/{at}/{digest}", tenant, Mark.model_validate(body))


class _Measured(KnowledgeRecord):
    measured: JsonTable


def _instant(moment: datetime) -> str:
    """In UTC and always of one length, so that the order of the texts is the order of time."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")
