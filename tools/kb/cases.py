"""From the plain data of one case to an `Entry`: of the seed, or of an optimization that was finished here.

Both have one shape. A published case must tell its story and its sources; a case of our own may lack
what nobody measured. A `Fault` names the field that is wrong.
"""

import json
from collections.abc import Mapping
from typing import Any

from tools.kb.entry import ARCHITECTURES, BOTTLENECKS, STATUSES, Entry
from tools.kb.facets import scale_of, vendor_of
from tools.kb.facts import PLAN_FIELDS
from tools.kb.playbooks import SOURCE, plan_value
from tools.kb.shape import (
    Fault,
    Table,
    line,
    list_of,
    number,
    one_of,
    or_null,
    plain_table,
    prose,
    slug,
    whole,
)

MOST_BYTES = 64 * 2**10
"""A case is read by people and by models: what is longer belongs in a file that the case names."""

_PLAN = Table({}, dict.fromkeys(PLAN_FIELDS, plan_value))
# A plan of ours has null where nothing was stated.
_OWN_PLAN = Table({}, dict.fromkeys(PLAN_FIELDS, or_null(plan_value)))
_MEASURED = Table({"metric": line}, {"before": number, "after": number, "speedup": number, "note": prose})
_WHERE = {
    "model": line, "architecture": one_of(*ARCHITECTURES), "device": slug, "num_devices": whole,
    "framework": slug, "bottleneck": one_of(*BOTTLENECKS),
}  # fmt: skip
_HEAD = {"id": slug, "title": line}

SEED_CASE = Table(
    {
        **_HEAD, "status": one_of("confirmed", "refuted"), **_WHERE, "before": _PLAN, "after": _PLAN,
        "measured": _MEASURED, "story": prose, "lesson": prose, "sources": list_of(SOURCE, at_least=1),
    },
)  # fmt: skip
OWN_CASE = Table(
    {**_HEAD, "story": prose},
    {
        "status": one_of(*STATUSES), **_WHERE, "before": _OWN_PLAN, "after": _OWN_PLAN,
        "scenario": plain_table, "predicted": plain_table, "measured": plain_table, "lesson": prose,
        "sources": list_of(SOURCE),
    },
)  # fmt: skip


def parse_seed_case(data: Mapping[str, Any]) -> Entry:
    """A case that comes with ASAP."""
    SEED_CASE("", data)
    return case_entry(data, tenant=None, is_seed=True)


def check_own_case(path: str, value: object) -> None:
    """Raises Fault unless this can be stored as a case."""
    OWN_CASE(path, value)
    check_size(path or "the case", value)


def check_size(path: str, value: object) -> None:
    """Of what passed as plain JSON."""
    size_bytes = len(json.dumps(value).encode())
    if size_bytes > MOST_BYTES:
        raise Fault(path, f"{size_bytes} bytes", f"may have at most {MOST_BYTES} as JSON")


def case_entry(data: Mapping[str, Any], tenant: str | None, *, is_seed: bool = False) -> Entry:
    """The entry of a case that was checked when it came in."""
    return Entry(
        id=data["id"],
        kind="case",
        title=data["title"],
        text="\n".join(_texts(data)),
        facets=_facets(data),
        status=data.get("status", "hypothesis"),
        tenant=tenant,
        body=data,
        is_seed=is_seed,
    )


def _texts(data: Mapping[str, Any]) -> list[str]:
    """What a search reads: the prose, and the facts in the words that a report would use."""
    said = [data[field] for field in ("story", "lesson") if field in data]
    named = [str(data[field]) for field in ("model", "device", "framework", "bottleneck") if field in data]
    before, after = data.get("before", {}), data.get("after", {})
    changed = [
        f"{field} {before[field]} to {value}" if field in before else f"{field} {value}"
        for field, value in after.items()
        if before.get(field) != value
    ]
    return [*said, " ".join(named), ", ".join(changed)]


def _facets(data: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    named = ("device", "architecture", "bottleneck", "framework")
    facets: dict[str, tuple[str, ...]] = {name: (data[name],) for name in named if name in data}
    if "num_devices" in data:
        facets["scale"] = (scale_of(data["num_devices"]),)
    if vendor := vendor_of(data.get("device", "")):
        facets["vendor"] = (vendor,)
    return facets
