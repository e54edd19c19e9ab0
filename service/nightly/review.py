"""One night: each workload read, compared with the nights before, diagnosed and re-optimized; then the
summary.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from graph.request import parse_request
from service import __version__
from service.db.engine import Database, is_outage
from service.db.schedules import WorkloadRow, add_night, find_workload, list_nights, set_workload
from service.nightly.config import Policy, Workload, scenario_of
from service.nightly.ingest import Source, find_sources, find_uploads
from service.nightly.reoptimize import NOTHING_PLANNED, Reoptimizer, doubt, replan
from service.traces import Uploads
from tools.errors import AsapError, InputError
from tools.nightly.findings import Finding
from tools.nightly.night import Night, as_run
from tools.nightly.read import read_metrics_night, read_profile_night
from tools.nightly.review import Review, advise, gained_device_hours, review

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


MOST_NEW = 60
"""Nights taken in at once, where a history begins or was interrupted."""

_log = logging.getLogger(__name__)


class InterruptedNightError(Exception):
    """The night must go on elsewhere, or later: nothing is wrong with the workload."""


@dataclass(frozen=True)
class Desk:
    """What every workload of a run works with."""

    database: Database
    tenant: str
    base: Path
    """What patterns and files of scenarios are relative to."""
    uploads: Uploads
    reoptimizer: Reoptimizer | None
    run_id: str | None = None
    clock: Callable[[], float] = time.time


@dataclass(frozen=True)
class Taken:
    """The newest night, and what its profile says besides."""

    night: Night
    source: Source
    diagnosis: Data | None
    is_new: bool
    told_until: float
    """The time of the last night before this run."""
    notes: list[str]


def run_workload(desk: Desk, workload: Workload, policy: Policy) -> Data:
    """Raises for nothing that is wrong with one workload, whatever it is: the others must still run."""
    row = _find_last(desk, workload.name)
    before = row.outcome if row else {}
    if row and desk.run_id and row.run_id == desk.run_id:
        return before  # done by a leg of this run that did not end
    try:
        said = _run(desk, workload, policy, before)
    except AsapError as error:
        said = broken(workload, str(error), before)
    except InterruptedNightError:
        raise
    except Exception as error:
        if is_outage(error):
            raise
        _log.exception("workload %s failed", workload.name)
        said = broken(workload, f"unexpected {type(error).__name__}: {error}", before)
    _keep(desk, workload.name, said)
    return said


def _find_last(desk: Desk, name: str) -> WorkloadRow | None:
    with desk.database.read() as conn:
        return find_workload(conn, desk.tenant, name)


def _run(desk: Desk, workload: Workload, policy: Policy, before: Data) -> Data:
    described = scenario_of(workload, desk.base)
    _check(described)
    taken = _take(desk, workload, described, before)
    with desk.database.read() as conn:
        nights = list_nights(conn, desk.tenant, workload.name)
    told_until = taken.told_until if taken.is_new else None
    found = review(nights, workload.hours_per_day, policy.least_change, told_until=told_until)
    status = found.status if taken.is_new else STALE
    today = as_run(described, taken.night.surroundings.plan)
    planned = _plan(desk, workload, policy, before, today, taken, found)
    lost, gained = found.lost_device_hours_per_day, planned["gained_device_hours_per_day"]
    return {
        "name": workload.name,
        "status": status,
        "reason": None if taken.is_new else stale_reason(taken.night),
        **names_of(today),
        "hours_per_day": workload.hours_per_day,
        "night": brief(taken.night),
        "num_nights": len(found.nights),
        "num_other_nights": found.others,
        "is_alarm": taken.is_new and found.is_regression,
        "findings": [finding_of(one, found) for one in found.findings],
        "attribution": attribution_of(found),
        "diagnosis": taken.diagnosis,
        "advice": advise(found),
        "lost_device_hours_per_day": lost,
        **planned,
        "wasted_device_hours_per_day": max(lost, gained),
        "trend": trend_of(found),
        "notes": [*taken.notes, *taken.night.notes, *doubt(planned["best"], taken.night.step_time_s)],
    }


def _check(described: Data) -> None:
    try:
        parse_request(described)
    except InputError as error:
        raise InputError(f"scenario.{error.field}", error.given, error.allowed) from None


def _take(desk: Desk, workload: Workload, described: Data, before: Data) -> Taken:
    """Records every night since the one last told of; the newest must be readable, others are noted."""
    told = before.get("night")
    with desk.database.read() as conn:
        known = list_nights(conn, desk.tenant, workload.name, limit=1)
        uploaded = find_uploads(conn, desk.tenant, workload, desk.uploads) if workload.uploads else None
    sources = find_sources(workload, desk.base, desk.clock()) if uploaded is None else uploaded
    last_s = told["at"] if told and known else float("-inf")
    fresh = [one for one in sources if one.at > last_s][-MOST_NEW:]
    if not fresh:
        return Taken(known[0], sources[-1], before.get("diagnosis"), False, last_s, [])
    notes = []
    for source in fresh[:-1]:
        try:
            _record(desk, workload, described, source)
        except AsapError as error:
            notes.append(f"an earlier night was left out: {error}")
    night, diagnosis = _record(desk, workload, described, fresh[-1])
    is_new = not told or night.key != told["key"]
    return Taken(night, fresh[-1], diagnosis, is_new, last_s, notes)


def _record(desk: Desk, workload: Workload, described: Data, source: Source) -> tuple[Night, Data | None]:
    diagnosis: Data | None = None
    if source.is_metrics:
        night = read_metrics_night(described, source.path)
    else:
        night, analysis = read_profile_night(described, source.path)
        diagnosis = diagnosis_of(analysis.report.model_dump())
    with desk.database.begin() as conn:
        add_night(conn, desk.tenant, workload.name, night)
    return night, diagnosis


def _plan(
    desk: Desk, workload: Workload, policy: Policy, before: Data, today: Data, taken: Taken, found: Review
) -> Data:
    """The best plan, the open proposal, and what it would free."""
    if not policy.reoptimize or desk.reoptimizer is None:
        return {**NOTHING_PLANNED, "gained_device_hours_per_day": 0.0}
    request = policy.request(today)
    if taken.source.reference:
        request["traces"] = taken.source.reference
    is_slower = taken.is_new and found.is_regression
    planned = replan(desk.reoptimizer, workload.name, request, before, policy.gain, is_slower, desk.clock())
    speedup = (planned["proposal"] or {}).get("speedup") or 1.0
    gained = gained_device_hours(found.nights[-1].num_devices, speedup, workload.hours_per_day)
    return {**planned, "gained_device_hours_per_day": gained}


def _keep(desk: Desk, name: str, said: Data) -> None:
    proposal = said["proposal"] or {}
    row = WorkloadRow(
        tenant=desk.tenant,
        name=name,
        status=said["status"],
        reason=said["reason"],
        wasted_device_hours_per_day=said["wasted_device_hours_per_day"],
        updated_at=desk.clock(),
        run_id=desk.run_id,
        session_id=proposal.get("session_id"),
        outcome=said,
    )
    with desk.database.begin() as conn:
        set_workload(conn, row)


QUIET, REGRESSION = "quiet", "regression"
FORMAT = 1


def run_night(
    desk: Desk,
    policy: Policy,
    title: str,
    planned_at: float | None = None,
    on_workload: Callable[[Data], None] | None = None,
) -> Data:
    """`on_workload` is told of each when it is done; it may raise to end the run."""
    workloads = []
    for workload in policy.workloads:
        said = run_workload(desk, workload, policy)
        workloads.append(said)
        if on_workload:
            on_workload(said)
    return report_of(workloads, title, planned_at or desk.clock(), desk.run_id)


def report_of(workloads: Sequence[Data], title: str, at: float, run_id: str | None) -> Data:
    """What cost most comes first; what could not be read comes before all, since nothing is known of it."""
    ordered = sorted(workloads, key=_order)
    outcome = outcome_of(workloads)
    return {
        "format": FORMAT,
        "asap": __version__,
        "run_id": run_id,
        "title": title,
        "at": at,
        "made_at": time.time(),
        "outcome": outcome,
        "summary": summary_of(workloads),
        "lost_device_hours_per_day": sum(one["lost_device_hours_per_day"] for one in workloads),
        "gained_device_hours_per_day": sum(one["gained_device_hours_per_day"] for one in workloads),
        "workloads": ordered,
    }


def outcome_of(workloads: Sequence[Data]) -> str:
    """A regression outweighs a workload that could not be read."""
    if any(one["is_alarm"] for one in workloads):
        return REGRESSION
    return BROKEN if any(one["status"] == BROKEN for one in workloads) else QUIET


def summary_of(workloads: Sequence[Data]) -> str:
    """The report in one sentence."""
    counts = {word: sum(one["status"] in states for one in workloads) for word, states in WORDS.items()}
    told = [f"{count} {word}" for word, count in counts.items() if count]
    waiting = sum(bool(one["proposal"]) for one in workloads)
    plans = f"; {waiting} with a faster plan proposed" if waiting else ""
    return f"{len(workloads)} workload{'' if len(workloads) == 1 else 's'}: {', '.join(told)}{plans}"


WORDS = {
    "got slower": ("regressed",),
    "still slower": ("slower",),
    "slow for one night": ("suspected",),
    "could not be read": (BROKEN,),
    "without a new profile": ("stale",),
    "back to normal": ("recovered",),
    "faster": ("improved",),
    "with a notice": ("notice",),
    "quiet": ("quiet",),
    "still learning": ("learning",),
}
_RANK = ("regressed", BROKEN, "slower", "suspected", "notice", "stale")


def _order(said: Data) -> tuple[int, float, str]:
    rank = _RANK.index(said["status"]) if said["status"] in _RANK else len(_RANK)
    return rank, -said["wasted_device_hours_per_day"], said["name"]
