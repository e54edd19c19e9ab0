"""Words and sentences about a workload's night that every format shares: pages, Markdown, mail and chat."""

import json
from datetime import UTC, datetime

from service.render.text import STEP, counted, gib, percent, plain, seconds, seconds_span
from tools.nightly.findings import MEMORY, MFU, SPREAD, TERM, NightFinding
from tools.nightly.result import NightReport, NightResult
from tools.physics.memory import GIB

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
    "unwatched": "not watched",
}
STORIES = ("regressed", "slower", "suspected", "notice", "broken", "stale", "recovered", "improved")
"""Statuses that an overview explains; chat leaves out those that need no action."""
TERMS = {**STEP, "pipeline": "pipeline", "other_comm_exposed": "other communication"}
CHANGE_KINDS = {"software": "software", "plan": "plan", "nodes": "node set", "data": "data"}
LIMITS = {
    "nights": "the number of nights",
    "steps": "the steps per profile",
    "scatter": "the scatter between nights",
}
MAX_CHANGES = 6


def in_one_line(report: NightReport) -> str:
    return plain(f"{report.title}, {day(report.at)}: {report.summary}")


def day(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")


def amount(figure: str, value: float) -> str:
    """A figure in the unit people read it in."""
    if figure == MFU:
        return percent(value)
    if figure == SPREAD:
        return f"{value:.1%} of the step"
    if figure == MEMORY:
        return gib(value / GIB)
    return seconds(value)


def span(figure: str, before: float, now: float) -> str:
    if figure == SPREAD:
        return f"{before:.1%} to {amount(figure, now)}"
    if figure in (MFU, MEMORY):
        return f"{amount(figure, before)} to {amount(figure, now)}"
    return seconds_span(before, now)


def hours(value: float) -> str:
    """Device-hours, with as many digits as matter."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}" if value else "0"


def term(name: str) -> str:
    return TERMS.get(name, name.replace("_", " "))


def label(finding: NightFinding) -> str:
    name = finding.figure
    return term(name.removeprefix(TERM)) if name.startswith(TERM) else finding.label


def change(finding: NightFinding) -> str:
    """+5.2%, and of what."""
    of_step = " of the step" if finding.figure.startswith(TERM) else ""
    return f"{finding.change_ratio:+.1%}{of_step}"


def sentence(finding: NightFinding) -> str:
    since = day(finding.since)
    course = span(finding.figure, finding.before, finding.now)
    start = f"{label(finding)} {course} ({change(finding)})"
    if finding.state == "suspected":
        return f"{start} on one night, {since}; the next night will show whether it lasts"
    if finding.odd_nights == 1:
        before, now = amount(finding.figure, finding.before), amount(finding.figure, finding.now)
        return f"{label(finding)} {before} on {since} was one odd night; it is {now} again"
    if finding.odd_nights:
        scatter = f"nights scatter by {finding.scatter_ratio:.1%}"
        nights = counted(finding.odd_nights, "odd night")
        reason = f"{nights}, no recorded change; {scatter}"
        return f"{label(finding)}: the alarm of {since} is taken back ({reason})"
    if finding.state == "recovered":
        return f"{start}: back to normal"
    if finding.drift_ratio is not None:
        rate = f"{finding.drift_ratio:+.2%} a night"
        return f"{start} since {since}: a drift of {rate}; nights scatter by {finding.scatter_ratio:.1%}"
    count = f"{finding.nights} nights" if finding.nights > 1 else "one night"
    return f"{start} since {since}, {count}; nights scatter by {finding.scatter_ratio:.1%}"


def sensitivity(result: NightResult) -> list[str]:
    """The regression that is detected and by when, what limits it, and what to do."""
    found = result.sensitivity
    if found is None:
        verb = "is" if result.num_nights == 1 else "are"
        nights = f"{counted(result.num_nights, 'night')} {verb} not enough to detect a change"
        return [nights] if result.num_nights else []
    steps = f", {found.step_error_ratio:.1%} from the steps of each night" if found.step_error_ratio else ""
    return [
        f"a regression of {found.change_ratio:.1%} is detected within {found.nights} nights "
        f"({found.recorded_ratio:.1%} if a change is recorded with it), one of {found.later_ratio:.1%} "
        f"within {found.later_nights}, at {found.false_alarms_per_month:g} false alarms per month",
        f"limited by {LIMITS[found.limited_by]}: nights scatter by {found.scatter_ratio:.1%}{steps} "
        f"({found.num_steps} steps per night, {found.num_nights} nights at the current level)",
        f"to detect smaller ones, {found.advice}",
    ]


def found(result: NightResult) -> str:
    """The regression that is detected, for a table."""
    least = result.sensitivity
    return f"{least.change_ratio:.1%} in {least.nights} nights" if least else ""


def bisection(result: NightResult) -> list[str]:
    """Runs that prove which recorded change it was."""
    plan = result.bisection
    if plan is None:
        return []
    repeats = f", each measured {plan.repeats} times" if plan.repeats > 1 else ""
    cost = f"{hours(plan.device_hours)} device-hours in total"
    lines = [f"at most {counted(plan.num_runs, 'run')}{repeats}, {cost}"]
    for run in plan.runs:
        fields = ", ".join(f'"{name}": {json.dumps(value)}' for name, value in run.plan.items())
        request = f" (in tune mode, with {fields} in the plan)" if fields else ""
        start = f"run {run.name}: revert {'; '.join(run.revert)}{request}"
        line = f"{start}. If it is fast, {run.if_fast}; if it is still slow, {run.if_slow}"
        # Two names with a backtick each would make code of what stands between them.
        lines.append(line.replace("`", "'"))
    return lines


def causes(result: NightResult) -> list[str]:
    why = result.attribution
    if why is None:
        return []
    lines = [
        f"{term(grown.term)} {seconds_span(grown.before_s, grown.now_s)}: "
        f"{min(grown.share, 1.0):.0%} of the change"
        for grown in why.terms
    ]
    lines += [f"by the traces: {cause.summary}".replace("`", "'") for cause in why.causes]
    for changed in why.changes[:MAX_CHANGES]:
        name = changed.name if changed.kind == "data" else f"{CHANGE_KINDS[changed.kind]}: {changed.name}"
        when = "the same night"
        if changed.offset:
            side = "later" if changed.offset > 0 else "earlier"
            when = f"{counted(abs(changed.offset), 'night')} {side}"
        lines.append(f"{name} {changed.before} to {changed.now}, {when}")
    if len(why.changes) > MAX_CHANGES:
        lines.append(f"{len(why.changes) - MAX_CHANGES} more changes about that night")
    for slow in why.slow_ranks:
        place = f"rank {slow.rank}{' on ' + slow.node if slow.node else ''}"
        lines.append(f"{place} takes {slow.ratio:.0%} longer than the median rank")
    recorded = [name for kind, name in CHANGE_KINDS.items() if kind not in why.unknown]
    if recorded and not why.changes and not why.slow_ranks:
        lines.append(f"no recorded change near that night ({', '.join(recorded)})")
    return lines


def proposal(result: NightResult) -> str | None:
    """The open proposal in one sentence."""
    proposed = result.proposal
    if proposed is None:
        return None
    how = "measured" if proposed.measured else "predicted"
    speed = f"{how} {proposed.speedup:.2f}x as fast" if proposed.speedup else "proposed"
    if proposed.speedup_low:
        speed += f" ({proposed.speedup_low:.2f} to {proposed.speedup_high:.2f})"
    freed = result.gained_device_hours_per_day
    worth = f", saves {hours(7 * freed)} device-hours per week" if freed >= 1 else ""
    waits = "; waiting for approval" if proposed.waits else ""
    return f"{proposed.summary}: {speed}{worth}{waits}"


def session(result: NightResult) -> list[str]:
    """The last session about the workload, as far as it needs attention."""
    last = result.asked
    if not last:
        return []
    name = f"session {last.session_id}" if last.session_id else "the session"
    lines = [f"{name} failed: {last.failure}"] if last.failure else []
    if last.is_open:
        waits = result.proposal is not None and result.proposal.waits
        lines.append(f"{name} " + ("is waiting for approval" if waits else "is still running"))
    return [*lines, *([f"trials: {last.trials}"] if last.trials else [])]
