"""The memory of cases as a ledger: what was added and how it was marked, nothing changed or deleted.

A record is a case as it came in, or a mark that gives a case another status. Since records are only ever
added, writers cannot overwrite each other. A reader sees the seed, the public records and its own; a mark
counts for its tenant alone, so a tenant may refute a public case for itself. Where the records are kept
is a `CaseStore`'s business.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, Protocol

from tools.kb.cases import case_entry
from tools.kb.entry import Entry


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
