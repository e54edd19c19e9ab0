"""The terminal output of `asap diagnose`: the verdict, tables with bars, and measured against predicted."""

from rich.console import Console, Group
from rich.panel import Panel
from rich.text import Text

from service.cli.io import make_table, safe_text
from service.render.text import signed_percent
from tools.trace.breakdown import BreakdownUs
from tools.trace.compare import PredictionComparison, TraceChange
from tools.trace.diagnosis import ProfileDiagnosis
from tools.trace.rank_profile import RankReport
from tools.trace.report import TraceReport
from tools.trace.roofline import RoofReport

NEAR_RATIO = 0.1
BAR_WIDTH = 24
TERMS = (
    ("compute_us", "compute", "green", "█"),
    ("exposed_communication_us", "communication", "red", "▓"),
    ("memory_us", "copies", "yellow", "▒"),
    ("idle_host_us", "idle, host late", "blue", "░"),
    ("idle_waiting_us", "idle, waiting", "bright_black", "·"),
    ("idle_unknown_us", "idle, unknown", "bright_black", "·"),
)
"""Key, name, colour, and a sign that tells them apart without colour."""
MAX_RANKS, MAX_CAUSES, MAX_COLLECTIVES, MAX_STRAGGLERS, MAX_POINTS = 24, 4, 8, 8, 5
RANKS = (">rank", ">total ms", ">compute", ">comm.", ">copies", ">idle", ">overlap", "where the time goes")
COLLECTIVES = ("kind", "group", ">MB", ">count", ">ms", ">transfer", ">waiting", ">GB/s", ">link")
MAX_PLACES = 12
PLACES = (">µs", "change", "kind", ">before", ">after", "where")
STRAGGLERS = (">rank", ">arrives last", ">late by ms", ">in total ms", "because")
POINTS = ("op", "shape", ">TFLOP/s", ">roof", ">bound", ">ms", ">lost ms")
HOST = (
    ">rank", ">launches", ">µs each", ">queue depth", ">syncs", ">sync ms", ">loader ms", ">small kernels",
)  # fmt: skip


def print_report(console: Console, report: TraceReport, far_apart: str | None = None) -> None:
    """How far the prediction is off if that is the finding, the verdict, then the evidence."""
    if far_apart:
        console.print(safe_text(far_apart, style="bold red"))
    if report.diagnosis is not None:
        console.print(_verdict(report.diagnosis))
    ranks = make_table(*RANKS)
    for rank in report.ranks[:MAX_RANKS]:
        terms_us = (rank.compute_us, rank.exposed_communication_us, rank.memory_us, rank.idle_us)
        ranks.add_row(
            str(rank.rank),
            f"{rank.total_us / 1000:,.1f}",
            *(f"{us / (rank.total_us or 1.0):.1%}" for us in terms_us),
            "-" if rank.overlap_ratio is None else f"{rank.overlap_ratio:.0%}",
            stacked_bar(rank),
        )
    if len(report.ranks) > MAX_RANKS:
        ranks.add_row("…", *[""] * 6, f"{len(report.ranks) - MAX_RANKS} more ranks (see --json)")
    console.print(ranks)
    signs = (piece for _, name, colour, sign in TERMS[:-1] for piece in ((sign, colour), f" {name}  "))
    console.print(Text.assemble(*signs, "\n"))
    _print_collectives(console, report)
    if points := _worst_points(report.ranks):
        rows = (
            (
                *(_short_op(point.op), f"{point.shape} {point.precision}"),
                *(_significant(point.achieved_tflops), _significant(point.roof_tflops), point.bound or "-"),
                *(_ms(point.time_us, 2), _ms(point.lost_us, 2)),
            )
            for point in points
        )
        console.print(make_table(*POINTS, title="\nFurthest below the roofline", rows=rows))
    hosts = (
        (
            *(str(rank.rank), f"{rank.host.launches:,}", _number(rank.host.launch_mean_us, 1)),
            *(_number(rank.host.queue_depth_median, 0), str(rank.host.synchronisations)),
            *(_ms(rank.host.synchronisation_us, 2), _ms(rank.host.data_loading_us, 1)),
            f"{rank.host.small_kernel_ratio:.0%}",
        )
        for rank in report.ranks[:MAX_RANKS]
    )
    console.print(make_table(*HOST, title="\nHost", rows=hosts))
    for rank in report.ranks:
        for note in rank.notes:
            console.print(safe_text(f"rank {rank.rank}: {note}", style="dim"))
    by_order = [str(rank.rank) for rank in report.ranks if rank.rank_source == "order"]
    if by_order:
        console.print(Text(f"ranks numbered by the order of the files: {', '.join(by_order)}", style="dim"))
    for unreadable in report.unreadable:
        console.print(safe_text(f"unreadable: {unreadable.file}: {unreadable.reason}", style="red"))


def _verdict(diagnosis: ProfileDiagnosis) -> Panel:
    lines: list[Text] = []
    if diagnosis.causes:
        first = diagnosis.causes[0]
        facts = (first.summary, f"lever: {first.lever}", *(item.summary for item in first.evidence[1:]))
        facts = (*facts, f"measure next: {first.measure}") if first.measure else facts
        style = "bold red" if first.cause == "trace_mismatch" else "bold"
        lines += [safe_text(fact, style=style) for fact in facts]
    lines += [safe_text(f"then {cause.summary}") for cause in diagnosis.causes[1:MAX_CAUSES]]
    if split := diagnosis.compute_split:
        parts = {
            "products at the roof": split.ideal_s,
            "lost to the roof": split.inefficiency_s,
            "attention": split.attention_s or None,
            "other kernels": split.other_s,
        }
        known = (f"{name} {seconds * 1000:,.1f} ms" for name, seconds in parts.items() if seconds is not None)
        lines.append(safe_text(f"computing, per step: {', '.join(known)}"))
    lines.append(safe_text(diagnosis.summary))
    lines += [safe_text(f"• {item.summary}", style="dim") for item in diagnosis.evidence]
    lines += [safe_text(f"also {item.bottleneck}: {item.why}") for item in diagnosis.competing_causes]
    lines += [safe_text(f"next: {item}", style="italic") for item in diagnosis.next_to_profile]
    title = (
        f"[bold]{(diagnosis.cause or diagnosis.bottleneck).replace('_', ' ')}[/bold] costs "
        f"{diagnosis.causes[0].share if diagnosis.causes else diagnosis.severity:.0%} of the step"
        f" (confidence {diagnosis.confidence:.2f})"
    )
    is_other_job = diagnosis.cause == "trace_mismatch"
    return Panel(
        Group(*lines), title=title, title_align="left", border_style="red" if is_other_job else "none"
    )


def stacked_bar(breakdown: BreakdownUs) -> Text:
    """One coloured bar; rounding never changes its length."""
    total = breakdown.total_us or 1.0
    bar, drawn, reached = Text(), 0, 0.0
    for key, _, colour, sign in TERMS:
        reached += getattr(breakdown, key) / total * BAR_WIDTH
        width = max(0, round(reached) - drawn)
        bar.append(sign * width, style=colour)
        drawn += width
    return bar


def _print_collectives(console: Console, report: TraceReport) -> None:
    """What was sent, and who was late for it."""
    if report.collectives:
        rows = (
            (
                c.kind,
                "-" if c.group == "group not recorded" else c.group.removeprefix("ranks ")[:16],
                _number(None if c.message_bytes is None else c.message_bytes / 1e6, 2),
                *(str(c.count), _ms(c.time_us, 1)),
                ("≤" if c.transfer_is_upper_bound else "") + _ms(c.transfer_us, 1),
                *(_ms(c.waiting_us, 1), _number(c.bus_bandwidth_gbytes_per_s, 1)),
                _significant(c.link_gbytes_per_s),
            )
            for c in report.collectives[:MAX_COLLECTIVES]
        )
        title = "Collectives: times are means over ranks, GB/s is on the bus"
        console.print(make_table(*COLLECTIVES, title=title, rows=rows))
    if report.stragglers:
        late_ranks = (
            (
                *(str(late.rank), f"{late.arrives_last_ratio:.0%}", f"{late.late_by_us / 1000:.2f}"),
                *(f"{late.late_total_us / 1000:.1f}", late.cause),
            )
            for late in report.stragglers[:MAX_STRAGGLERS]
        )
        console.print(make_table(*STRAGGLERS, title="\nStragglers", rows=late_ranks, wraps=("because",)))


def _worst_points(ranks: list[RankReport]) -> list[RoofReport]:
    """Those that lose most over all ranks, each op and shape once."""

    def loss(point: RoofReport) -> float:
        return float(point.time_us if point.lost_us is None else point.lost_us)

    worst: dict[tuple[str, str], RoofReport] = {}
    for point in sorted((point for rank in ranks for point in rank.roofline), key=loss, reverse=True):
        worst.setdefault((point.op, point.shape), point)
    return [*worst.values()][:MAX_POINTS]


def _short_op(name: str) -> str:
    """Attention ops have names that would fill the line."""
    short = name.rpartition("::")[2].lstrip("_")
    if "attention" in short or "flash_attn" in short:
        return "attention bwd" if "backward" in short else "attention"
    return short[:20]


def print_prediction(console: Console, comparison: PredictionComparison) -> None:
    """The comparison term by term, then what it makes of the cost model."""
    columns = ("term", ">measured", ">predicted", ">error", ">calibrated", ">error")
    terms = make_table(*columns, title=f"\nMeasured and predicted, ms of one {comparison.per}")
    for row in (*comparison.terms, comparison.step_time):
        measured, predicted, calibrated = (
            f"{seconds * 1000:,.1f}" for seconds in (row.measured_s, row.predicted_s, row.calibrated_s)
        )
        errors = (
            Text("-")
            if ratio is None
            else Text(signed_percent(ratio), style="green" if abs(ratio) <= NEAR_RATIO else "red")
            for ratio in (row.predicted_error_ratio, row.calibrated_error_ratio)
        )
        cells = (row.term, measured, predicted, next(errors), calibrated, next(errors))
        terms.add_row(*cells, style="bold" if row.term == "step_time" else None)
    console.print(terms)
    constants = (
        (
            *(constant.name, f"{constant.default:.3g}", f"{constant.value:.3g}"),
            f"{constant.source}{' (its bound)' if constant.is_bounded else ''}",
        )
        for constant in comparison.coefficients
    )
    console.print(
        make_table(
            *("constant", ">default", ">measured", "from"),
            title="\nThe cost model, calibrated to this cluster",
            rows=constants,
            wraps=("from",),
        )
    )
    for note in comparison.notes:
        console.print(safe_text(note, style="dim"))


def print_change(console: Console, change: TraceChange) -> None:
    """What it comes from, then each term, and the places that changed most."""
    if change.speedup is not None:
        console.print(f"\nspeed-up {change.speedup:.3f}; {change.change_us / 1000:+,.3f} ms per {change.per}")
    for cause in change.causes[:MAX_CAUSES]:
        console.print(safe_text(f"  {cause.summary}"))
    rows = (
        (
            *(term.term, f"{term.before_us:,.1f}", f"{term.after_us:,.1f}"),
            Text(f"{term.change_us:+,.1f}", style="red" if term.change_us > 0 else "green"),
            _number(term.ratio, 2),
        )
        for term in change.terms
    )
    title = f"\nBefore and after, µs per {change.per}"
    console.print(make_table("term", ">before", ">after", ">change", ">ratio", title=title, rows=rows))
    places = make_table(*PLACES, title="\nWhat changed most, adding up to the difference", wraps=("where",))
    for part in change.parts[:MAX_PLACES]:
        cells = (
            f"{part.change_us:+,.1f}",
            part.change,
            part.kind,
            f"{part.before_count:g}",
            f"{part.after_count:g}",
        )
        places.add_row(*cells, safe_text(part.where))
    if more := change.parts[MAX_PLACES:]:
        places.add_row(f"{sum(part.change_us for part in more):+,.1f}", "", "", "", "", "all others")
    console.print(places)


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _ms(us: float | None, digits: int) -> str:
    return _number(None if us is None else us / 1000, digits)


def _significant(value: float | None) -> str:
    """Three digits: a CPU's hundredths of a TFLOP/s and an accelerator's hundreds alike."""
    return "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
