"""Entries of the knowledge base as lines of a list and as pages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args
from urllib.parse import urlencode

from service.api.schemas.knowledge import EntryPublic, HitPublic, Kind, Status
from service.report.text import seconds
from service.web.views.units import told, words

KINDS: tuple[str, ...] = get_args(Kind)
STATUSES: tuple[str, ...] = get_args(Status)
LESSON = ("lesson", "do", "story")
PARTS = {
    "symptoms": "Symptoms",
    "do": "What to do",
    "why": "Why",
    "effect": "Effect",
    "story": "What happened",
    "lesson": "Lesson",
}
PLACE = ("model", "architecture", "device", "num_devices", "framework", "bottleneck")


@dataclass(frozen=True)
class EntryView:
    entry: EntryPublic
    found_by: Sequence[str] = ()

    @property
    def brief(self) -> str:
        """What it teaches, for a list."""
        return str(next((self.body[name] for name in LESSON if self.body.get(name)), ""))

    @property
    def body(self) -> Mapping[str, Any]:
        return self.entry.body

    @property
    def tags(self) -> list[str]:
        return [value for values in self.entry.facets.values() for value in values]

    @property
    def parts(self) -> list[tuple[str, str]]:
        return [(name, str(self.body[key])) for key, name in PARTS.items() if self.body.get(key)]

    @property
    def place(self) -> list[tuple[str, str]]:
        return [(words(name), told(self.body[name])) for name in PLACE if self.body.get(name)]

    @property
    def plan_changes(self) -> list[tuple[str, str, str]]:
        """Fields of the plan, before and after."""
        before, after = self.body.get("before") or {}, self.body.get("after") or {}
        names = dict.fromkeys((*before, *after))
        shown = [(name, told(before.get(name)), told(after.get(name))) for name in names]
        return [one for one in shown if one[1] != one[2]]

    @property
    def figures(self) -> dict[str, list[tuple[str, str]]]:
        """What was predicted and what was measured, as they were written."""
        found = {name: self.body.get(name) or {} for name in ("predicted", "measured")}
        return {
            name: [_figure(key, value) for key, value in part.items()] for name, part in found.items() if part
        }


def hit_view(hit: HitPublic) -> EntryView:
    return EntryView(hit.entry, hit.matched)


def list_address(chosen: Mapping[str, str | None], **changed: str | None) -> str:
    fields = {name: value for name, value in {**chosen, **changed}.items() if value}
    return f"/knowledge?{urlencode(fields)}" if fields else "/knowledge"


def _figure(key: str, value: object) -> tuple[str, str]:
    """Seconds in the unit in which they are easy to read; everything else as it was written."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and key.endswith("_s") and not key.endswith("_per_s"):
        return words(key.removesuffix("_s")), seconds(float(str(value)))
    return words(key), told(value)
