"""What is said of a workload's night, as plain data: for the report, the pages and the next night."""

import time
from dataclasses import asdict
from typing import Any

from graph.request import parse_request
from service.nightly.definition import Workload
from tools.nightly.findings import Finding
from tools.nightly.night import Night
from tools.nightly.review import Review

STALE, BROKEN = "stale", "broken"
BRIEF = (
    "key",
    "at",
    "source",
    "step_time_s",
    "mfu",
    "peak_memory_bytes",
    "rank_spread_ratio",
    "num_steps",
    "terms_s",
)
FIGURES = ("step_time_s", "mfu", "peak_memory_bytes", "rank_spread_ratio")
NOTHING_FOUND: dict[str, Any] = {
    "findings": [],
    "attribution": None,
    "diagnosis": None,
    "best": None,
    "asked": None,
    "proposal": None,
    "lost_device_hours_per_day": 0.0,
    "gained_device_hours_per_day": 0.0,
    "wasted_device_hours_per_day": 0.0,
}
Data = dict[str, Any]


def diagnosis_of(data: Data) -> Data | None:
    found = data["diagnosis"]
    if found is None:
        return None
    kept = ("bottleneck", "severity", "confidence", "summary", "next_to_profile")
    return {name: found[name] for name in kept if name in found}


def stale_reason(night: Night) -> str:
    day = time.strftime("%Y-%m-%d %H:%M", time.gmtime(night.at))
    return f"nothing new since {day} UTC ({night.source}): does the job still run and profile?"


def names_of(described: Data) -> Data:
    scenario = parse_request(described).scenario
    return {
        "model": scenario["model"].get("name"),
        "device": scenario["cluster"].get("device"),
        "num_devices": scenario["cluster"].get("num_devices"),
    }


def brief(night: Night) -> Data:
    return {name: getattr(night, name) for name in BRIEF}


def finding_of(finding: Finding, found: Review) -> Data:
    return {**asdict(finding), "since": found.nights[finding.since].at}


def attribution_of(found: Review) -> Data | None:
    why = found.attribution
    if why is None:
        return None
    return {
        "terms": [asdict(one) for one in why.terms],
        "changes": [{**asdict(one), "night": found.nights[one.night].at} for one in why.changes],
        "slow_ranks": [{"rank": one.rank, "node": one.node, "ratio": one.ratio} for one in why.slow_ranks],
        "unknown": why.unknown,
    }


def trend_of(found: Review) -> Data:
    """What the plots draw: each figure on the nights that have it, with its level."""
    nights = found.nights
    drawn = {name: _drawn(found, name) for name in FIGURES}
    terms = sorted({term for night in nights for term in night.terms_s})
    return {
        "at": [night.at for night in nights],
        "figures": {name: one for name, one in drawn.items() if one["values"]},
        "terms_s": {term: [night.terms_s.get(term) for night in nights] for term in terms},
    }


def _drawn(found: Review, name: str) -> Data:
    values = [getattr(night, name) for night in found.nights]
    points = [(place, value) for place, value in enumerate(values) if value is not None]
    return {
        "nights": [place for place, _ in points],
        "values": [value for _, value in points],
        "levels": found.levels.get(name, []),
    }


def broken(workload: Workload, reason: str, before: Data) -> Data:
    """What was known before stays, so that the pages can still show it."""
    kept = {
        name: value for name, value in before.items() if name not in ("reason", "is_alarm", "reoptimized")
    }
    return {
        **dict.fromkeys(("model", "device", "num_devices", "night")),
        **NOTHING_FOUND,
        "num_nights": 0,
        "num_other_nights": 0,
        "trend": {"at": [], "figures": {}, "terms_s": {}},
        "notes": [],
        **kept,
        "name": workload.name,
        "hours_per_day": workload.hours_per_day,
        "status": BROKEN,
        "reason": reason,
        "is_alarm": False,
        "advice": [],
        "reoptimized": None,
    }
