"""Names of the parts of a step, of memory and of a night's findings, and the sentences about a workload that
every format shares.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from service.render.text import gib, percent, seconds, seconds_span
from tools.cost.memory import GIB

STEP = {
    "compute": "compute",
    "memory_bound_ops": "memory-bound operations",
    "tp_comm_exposed": "tensor-parallel communication",
    "cp_comm_exposed": "context-parallel communication",
    "ep_comm_exposed": "expert all-to-all",
    "dp_comm_exposed": "data-parallel communication",
    "pp_comm_exposed": "pipeline transfers",
    "pipeline_bubble": "pipeline bubble",
    "optimizer": "optimizer",
    "host_and_other": "host and other",
}
MEMORY = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "activations": "activations",
    "buffers": "buffers",
    "runtime": "runtime",
}
MEASURED = {
    "compute_us": "compute",
    "exposed_communication_us": "exposed communication",
    "memory_us": "copies",
    "idle_us": "idle",
}
EVIDENCE = {
    "profile": "measured",
    "roofline": "roofline",
    "model": "predicted",
    "knowledge": "knowledge",
    "trial": "trial",
}
SHOWN_SHARE = 0.001
"""A part below a thousandth of every bar is not named: it could not be seen."""


def visible_terms(names: Mapping[str, str], parts: Sequence[Mapping[str, float]]) -> dict[str, str]:
    """Those of the names whose part is large enough in some bar to be seen."""
    totals = [sum(bar.values()) or 1.0 for bar in parts]
    return {
        key: name
        for key, name in names.items()
        if any(bar[key] / total >= SHOWN_SHARE for bar, total in zip(parts, totals, strict=True))
    }


Data = Mapping[str, Any]
STATUS = {
    "regressed": "got slower",
    "slower": "still slower",
    "suspected": "slow for one night",
    "notice": "notice",
    "recovered": "back to normal",
    "improved": "faster",
    "quiet": "quiet",
    "learning": "learning",
    "stale": "no new profile",
    "broken": "not read",
    "unwatched": "not looked after",
}
TERMS = {**STEP, "pipeline": "pipeline", "other_comm_exposed": "other communication"}
KINDS = {"software": "software", "plan": "plan", "nodes": "node set", "data": "data"}
MOST_CHANGES = 6


def day(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")


def minute(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")


def amount(figure: str, value: float) -> str:
    """A figure in the unit people read it in."""
    if figure == "mfu":
        return percent(value)
    if figure == "rank_spread_ratio":
        return f"{value:.1%} of the step"
    if figure == "peak_memory_bytes":
        return gib(value / GIB)
    return seconds(value)


def moved(figure: str, before: float, now: float) -> str:
    """From what to what."""
    if figure in ("mfu", "rank_spread_ratio", "peak_memory_bytes"):
        return f"{amount(figure, before)} to {amount(figure, now)}"
    return seconds_span(before, now)


def term(name: str) -> str:
    return TERMS.get(name, name.replace("_", " "))


def label(finding: Data) -> str:
    name: str = finding["figure"]
    return term(name.removeprefix("terms_s.")) if name.startswith("terms_s.") else str(finding["label"])


def change(finding: Data) -> str:
    """+5.2%, and of what."""
    ratio = f"{finding['change_ratio']:+.1%}"
    is_part = finding["figure"].startswith("terms_s.") or finding["figure"] == "rank_spread_ratio"
    return f"{ratio} of the step" if is_part else ratio


def sentence(finding: Data) -> str:
    """What happened to a figure."""
    since, nights = day(finding["since"]), finding["nights"]
    course = moved(finding["figure"], finding["before"], finding["now"])
    told = f"{label(finding)} {course} ({change(finding)})"
    if finding["state"] == "suspected":
        return f"{told} in one night, {since}; the next night tells whether it lasts"
    if finding["state"] == "recovered":
        return f"{told}: back to normal"
    count = f"{nights} nights" if nights > 1 else "one night"
    return f"{told} since {since}, {count}; single nights scatter by {finding['scatter_ratio']:.1%}"


def causes(said: Data) -> list[str]:
    """Why, as far as it is known."""
    why = said["attribution"]
    if why is None:
        return []
    return [*_grown(why["terms"]), *_changed(why["changes"]), *_late(why["slow_ranks"]), *_unexplained(why)]


def _grown(terms: Sequence[Data]) -> list[str]:
    return [
        f"{term(one['term'])} {seconds_span(one['before_s'], one['now_s'])}: "
        f"{min(one['share'], 1.0):.0%} of the change"
        for one in terms
    ]


def _changed(changes: Sequence[Data]) -> list[str]:
    told = [
        f"{KINDS[one['kind']]}: {one['name']} {one['before']} to {one['now']}, {_when(one['offset'])}"
        for one in changes[:MOST_CHANGES]
    ]
    more = len(changes) - len(told)
    return [*told, f"{more} more changes about that night"] if more > 0 else told


def _when(offset: int) -> str:
    if not offset:
        return "the same night"
    nights = f"{abs(offset)} night{'s' if abs(offset) > 1 else ''}"
    return f"{nights} {'later' if offset > 0 else 'earlier'}"


def _late(ranks: Sequence[Data]) -> list[str]:
    return [
        f"rank {one['rank']}{' on ' + one['node'] if one['node'] else ''} takes {one['ratio']:.0%} longer "
        "than the middle one"
        for one in ranks
    ]


def _unexplained(why: Data) -> list[str]:
    if why["changes"] or why["slow_ranks"]:
        return []
    known = [name for kind, name in KINDS.items() if kind not in why["unknown"]]
    return [f"nothing recorded changed with it ({', '.join(known)})"] if known else []


def proposal(said: Data) -> str | None:
    """The open proposal in one sentence."""
    open_one = said["proposal"]
    if open_one is None:
        return None
    how = "as measured" if open_one.get("measured") else "by prediction"
    speed = f"{open_one['speedup']:.2f}x as fast {how}" if open_one["speedup"] else "proposed"
    if open_one["speedup_low"]:
        speed += f" ({open_one['speedup_low']:.2f} to {open_one['speedup_high']:.2f})"
    freed = said["gained_device_hours_per_day"]
    worth = f", {freed:,.0f} device-hours a day" if freed >= 1 else ""
    waits = "; it waits for an approval" if open_one["waits"] else ""
    return f"{open_one['summary']}: {speed}{worth}{waits}"


def session(said: Data) -> list[str]:
    """What is to be said of the last session about the workload."""
    asked = said.get("asked")
    if not asked:
        return []
    name = f"session {asked['session_id']}" if asked["session_id"] else "the session"
    told = [f"{name} failed: {asked['failure']}"] if asked["failure"] else []
    if asked["is_open"]:
        waits = bool(said["proposal"]) and said["proposal"]["waits"]
        told.append(f"{name} " + ("waits for an approval" if waits else "has not ended yet"))
    trials = asked.get("trials")  # records of releases without trials have none
    return [*told, *([f"trials: {trials}"] if trials else [])]


def hours(value: float) -> str:
    """Device-hours a day, with as many digits as matter."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}" if value else "0"
