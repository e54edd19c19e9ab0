"""The terminal output of `asap diagnose`: the verdict, tables with bars, and measured against predicted."""

from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from service.cli.io import make_table, safe_text
from service.render.text import signed_percent
from tools.trace.alignment import CollectiveSummary, Straggler
from tools.trace.breakdown import BreakdownUs
from tools.trace.calibrate import MeasuredCoefficient
from tools.trace.compare import PredictionComparison, TraceChange
from tools.trace.compute import ComputeSplit
from tools.trace.diagnosis import ProfileDiagnosis
from tools.trace.rank_profile import RankReport
from tools.trace.report import TraceReport
from tools.trace.roofline import RoofReport

_NEAR_RATIO = 0.1


def print_prediction(console: Console, comparison: PredictionComparison) -> None:
    """The comparison, then what it makes of the cost model."""
    console.print(_term_table(comparison))
    console.print(_coefficient_table(comparison.coefficients))
    for note in comparison.notes:
        console.print(safe_text(note, style="dim"))


def _term_table(comparison: PredictionComparison) -> Table:
    columns = ("term", ">measured", ">predicted", ">error", ">calibrated", ">error")
    table = make_table(*columns, title=f"\nMeasured and predicted, ms of one {comparison.per}")
    for row in (*comparison.terms, comparison.step_time):
        table.add_row(
            row.term,
            _milliseconds(row.measured_s),
            _milliseconds(row.predicted_s),
            _error_text(row.predicted_error_ratio),
            _milliseconds(row.calibrated_s),
            _error_text(row.calibrated_error_ratio),
            style="bold" if row.term == "step_time" else None,
        )
    return table


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.1f}"


def _error_text(ratio: float | None) -> Text:
    """Signed; far off is red."""
    if ratio is None:
        return Text("-")
    return Text(signed_percent(ratio), style="green" if abs(ratio) <= _NEAR_RATIO else "red")


def _coefficient_table(coefficients: list[MeasuredCoefficient]) -> Table:
    title = "\nThe cost model, calibrated to this cluster"
    table = make_table("constant", ">default", ">measured", "from", title=title, wraps=("from",))
    for constant in coefficients:
        mark = " (its bound)" if constant.is_bounded else ""
        figures = (f"{constant.default:.3g}", f"{constant.value:.3g}")
        table.add_row(constant.name, *figures, safe_text(f"{constant.source}{mark}"))
    return table


_BAR_WIDTH = 24
_TERMS = (
    ("compute_us", "compute", "green", "█"),
    ("exposed_communication_us", "communication", "red", "▓"),
    ("memory_us", "copies", "yellow", "▒"),
    ("idle_host_us", "idle, host late", "blue", "░"),
    ("idle_waiting_us", "idle, waiting", "bright_black", "·"),
    ("idle_unknown_us", "idle, unknown", "bright_black", "·"),
)
"""Key, name, colour, and a sign that tells them apart without colour."""
_MAX_ROWS = 24
_MAX_CAUSES = 4
_COLLECTIVES = "Collectives: times are means over ranks, GB/s is on the bus"


def print_report(console: Console, report: TraceReport) -> None:
    """Verdict first, then the evidence."""
    if report.diagnosis is not None:
        console.print(_verdict(report.diagnosis))
    console.print(_rank_table(report.ranks))
    console.print(_legend())
    if report.collectives:
        console.print(_collective_table(report.collectives))
    if report.stragglers:
        console.print(_straggler_table(report.stragglers))
    if points := _worst_points(report.ranks):
        console.print(_roofline_table(points))
    console.print(_host_table(report.ranks))
    _print_notes(console, report)


def _verdict(diagnosis: ProfileDiagnosis) -> Panel:
    lines = [safe_text(line, style="bold") for line in _first_cause(diagnosis)]
    lines += [safe_text(f"then {finding.says}") for finding in diagnosis.causes[1:_MAX_CAUSES]]
    lines += _split_line(diagnosis.compute_split)
    lines += [safe_text(diagnosis.summary)]
    lines += [safe_text(f"• {item.says}", style="dim") for item in diagnosis.evidence]
    lines += [safe_text(f"also {item.bottleneck}: {item.why}") for item in diagnosis.competing_causes]
    lines += [safe_text(f"next: {item}", style="italic") for item in diagnosis.next_to_profile]
    title = (
        f"[bold]{(diagnosis.cause or diagnosis.bottleneck).replace('_', ' ')}[/bold] costs "
        f"{diagnosis.causes[0].share if diagnosis.causes else diagnosis.severity:.0%} of the step"
        f" (confidence {diagnosis.confidence:.2f})"
    )
    return Panel(Group(*lines), title=title, title_align="left")


def _split_line(split: ComputeSplit | None) -> list[Text]:
    if split is None:
        return []
    parts = (
        ("products at the roof", split.ideal_s),
        ("lost to the roof", split.inefficiency_s),
        ("attention", split.attention_s or None),
        ("other kernels", split.other_s),
    )
    known = [f"{name} {seconds * 1000:,.1f} ms" for name, seconds in parts if seconds is not None]
    return [safe_text(f"computing, per step: {', '.join(known)}")]


def _first_cause(diagnosis: ProfileDiagnosis) -> list[str]:
    if not diagnosis.causes:
        return []
    first = diagnosis.causes[0]
    return [first.says, f"lever: {first.lever}", *(item.says for item in first.evidence[1:])]


def _rank_table(ranks: list[RankReport]) -> Table:
    figures = (">rank", ">total ms", ">compute", ">comm.", ">copies", ">idle", ">overlap")
    table = make_table(*figures, "where the time goes")
    for rank in ranks[:_MAX_ROWS]:
        table.add_row(*_rank_row(rank), stacked_bar(rank))
    if len(ranks) > _MAX_ROWS:
        table.add_row("…", *[""] * 6, f"{len(ranks) - _MAX_ROWS} more ranks (see --json)")
    return table


def _rank_row(rank: RankReport) -> list[str]:
    total = rank.total_us or 1.0
    terms_us = (rank.compute_us, rank.exposed_communication_us, rank.memory_us, rank.idle_us)
    overlap = rank.overlap_ratio
    return [
        str(rank.rank),
        f"{rank.total_us / 1000:,.1f}",
        *(f"{us / total:.1%}" for us in terms_us),
        "-" if overlap is None else f"{overlap:.0%}",
    ]


def stacked_bar(breakdown: BreakdownUs) -> Text:
    """One coloured bar; rounding never changes its length."""
    total = breakdown.total_us or 1.0
    bar, drawn, reached = Text(), 0, 0.0
    for key, _, colour, sign in _TERMS:
        reached += getattr(breakdown, key) / total * _BAR_WIDTH
        width = max(0, round(reached) - drawn)
        bar.append(sign * width, style=colour)
        drawn += width
    return bar


def _legend() -> Text:
    legend = Text()
    for _, name, colour, sign in _TERMS[:-1]:
        legend.append(sign, style=colour).append(f" {name}  ")
    return legend.append("\n")


def _collective_table(collectives: list[CollectiveSummary]) -> Table:
    figures = (">MB", ">count", ">ms", ">transfer", ">waiting", ">GB/s", ">link")
    table = make_table("kind", "group", *figures, title=_COLLECTIVES)
    for collective in collectives[:8]:
        size = collective.message_bytes
        table.add_row(
            safe_text(collective.kind),
            safe_text(_short_group(collective.group)),
            _number(None if size is None else size / 1e6, 2),
            str(collective.count),
            _number(collective.time_us / 1000, 1),
            ("≤" if collective.transfer_is_upper_bound else "") + _number(collective.transfer_us / 1000, 1),
            _number(None if collective.waiting_us is None else collective.waiting_us / 1000, 1),
            _number(collective.bus_bandwidth_gbytes_per_s, 1),
            _significant(collective.link_gbytes_per_s),
        )
    return table


def _short_group(group: str) -> str:
    return "-" if group == "group not recorded" else group.removeprefix("ranks ")[:16]


def _straggler_table(stragglers: list[Straggler]) -> Table:
    figures = (">rank", ">arrives last", ">late by ms", ">in total ms")
    table = make_table(*figures, "because", title="\nStragglers", wraps=("because",))
    for straggler in stragglers[:8]:
        table.add_row(
            str(straggler.rank),
            f"{straggler.arrives_last_ratio:.0%}",
            f"{straggler.late_by_us / 1000:.2f}",
            f"{straggler.late_total_us / 1000:.1f}",
            safe_text(straggler.cause),
        )
    return table


def _worst_points(ranks: list[RankReport]) -> list[RoofReport]:
    """The five that lose most over all ranks, each op and shape once."""
    best: dict[tuple[str, str], RoofReport] = {}
    for rank in ranks:
        for point in rank.roofline:
            key = (point.op, point.shape)
            if key not in best or _loss(point) > _loss(best[key]):
                best[key] = point
    return sorted(best.values(), key=lambda point: -_loss(point))[:5]


def _loss(point: RoofReport) -> float:
    return float(point.time_us if point.lost_us is None else point.lost_us)


def _roofline_table(points: list[RoofReport]) -> Table:
    figures = (">TFLOP/s", ">roof", ">bound", ">ms", ">lost ms")
    table = make_table("op", "shape", *figures, title="\nFurthest below the roofline")
    for point in points:
        table.add_row(
            safe_text(_short_op(point.op)),
            safe_text(f"{point.shape} {point.precision}"),
            _significant(point.achieved_tflops),
            _significant(point.roof_tflops),
            point.bound or "-",
            _number(point.time_us / 1000, 2),
            _number(None if point.lost_us is None else point.lost_us / 1000, 2),
        )
    return table


def _short_op(name: str) -> str:
    """Attention ops have names that would fill the line."""
    short = name.rpartition("::")[2].lstrip("_")
    if "attention" in short or "flash_attn" in short:
        return "attention bwd" if "backward" in short else "attention"
    return short[:20]


def _host_table(ranks: list[RankReport]) -> Table:
    launches = (">rank", ">launches", ">µs each", ">queue depth")
    waits = (">syncs", ">sync ms", ">loader ms", ">small kernels")
    table = make_table(*launches, *waits, title="\nHost")
    for rank in ranks[:_MAX_ROWS]:
        host = rank.host
        table.add_row(
            str(rank.rank),
            f"{host.launches:,}",
            _number(host.launch_mean_us, 1),
            _number(host.queue_depth_median, 0),
            str(host.synchronisations),
            _number(host.synchronisation_us / 1000, 2),
            _number(host.data_loading_us / 1000, 1),
            f"{host.small_kernel_ratio:.0%}",
        )
    return table


def _print_notes(console: Console, report: TraceReport) -> None:
    for rank in report.ranks:
        for note in rank.notes:
            console.print(safe_text(f"rank {rank.rank}: {note}", style="dim"))
    by_order = [str(rank.rank) for rank in report.ranks if rank.rank_source == "order"]
    if by_order:
        console.print(Text(f"ranks numbered by the order of the files: {', '.join(by_order)}", style="dim"))
    for unreadable in report.unreadable:
        console.print(safe_text(f"unreadable: {unreadable.file}: {unreadable.reason}", style="red"))


def print_change(console: Console, change: TraceChange) -> None:
    """Each term before and after."""
    title = f"\nBefore and after, µs per {change.per}"
    table = make_table("term", ">before", ">after", ">change", ">ratio", title=title)
    for term in change.terms:
        worse = term.change_us > 0
        table.add_row(
            term.term,
            f"{term.before_us:,.1f}",
            f"{term.after_us:,.1f}",
            Text(f"{term.change_us:+,.1f}", style="red" if worse else "green"),
            _number(term.ratio, 2),
        )
    console.print(table)
    if change.speedup is not None:
        console.print(f"speed-up {change.speedup:.3f}")


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _significant(value: float | None) -> str:
    """Three digits: a CPU's hundredths of a TFLOP/s and an accelerator's hundreds alike."""
    return "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
