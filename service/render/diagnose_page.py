"""The HTML report of `asap diagnose --html`: one file that needs no network and no server.

Names from traces are untrusted: everything is escaped, in the page and in the scripts' data.
"""

import json
from dataclasses import dataclass

from jinja2 import PackageLoader
from markupsafe import Markup

from service.render.html import make_environment
from service.render.plotly import Figure, plotly_script
from service.render.text import signed_percent
from service.render.trace_figures import (
    COLOURS,
    KINDS,
    allocated_memory_figure,
    measured_collectives_figure,
    measured_roofline_figure,
    terms_figure,
    timeline_figure,
    waiting_figure,
)
from tools.trace.compare import PredictionCheck, TermComparison, compare
from tools.trace.rank_profile import find_device
from tools.trace.report import DrawnReport, TraceAnalysis

TEMPLATE = "diagnose.html.jinja"
PAINT = {
    "--page": "#ffffff", "--card": "#f6f7f9", "--ink": "#1c2026", "--soft": "#59616d", "--rule": "#dde1e7",
    "--edge": "#8b94a1", "--compute": "#33658a", "--memory_bound_ops": "#8fb7d6", "--optimizer": "#7b9c75",
    "--tp_comm_exposed": "#b94a34", "--cp_comm_exposed": "#e39b77", "--ep_comm_exposed": "#94558a",
    "--dp_comm_exposed": "#e0a93b",
}  # fmt: skip
"""The colours that the web pages take from their stylesheet."""
MAX_RANKS_WITH_KERNELS = 8
MAX_NAME_CHARACTERS = 140


@dataclass(frozen=True)
class Table:
    title: str
    columns: list[str]
    rows: list[list[str]]
    notes: list[str]


def render_page(
    analysis: TraceAnalysis, after: TraceAnalysis | None = None, check: PredictionCheck | None = None
) -> str:
    """The whole page as text."""
    report = analysis.drawn()
    figures = {title: as_script(figure) for title, figure in _figures(report, analysis).items()}
    template = make_environment(PackageLoader("service.render")).get_template(TEMPLATE)
    return template.render(
        folder=analysis.profile.folder,
        diagnosis=report.diagnosis,
        comparisons=[*_change_tables(analysis, after), *_prediction_tables(check)],
        legend={kind: PAINT[colour] for kind, colour in zip(KINDS, COLOURS, strict=True)},
        figures=figures,
        tables=[*_trace_tables(report), *_calibration_tables(check), _unreadable_table(report)],
        plotly=Markup(plotly_script()),
    )


def _figures(report: DrawnReport, analysis: TraceAnalysis) -> dict[str, Figure]:
    """By title; those without data are left out."""
    named = next((rank.device for rank in report.ranks if rank.device), None)
    device = analysis.device or find_device(named)
    figures = {
        "Timeline": timeline_figure(report.drawing.strips) if report.drawing.strips else None,
        "Where the time goes": terms_figure(report.ranks),
        "Transfer and waiting": waiting_figure(report.collectives),
        "Collectives": measured_collectives_figure(report.collectives),
        "Roofline": measured_roofline_figure(report.drawing.points, device),
        "Memory": allocated_memory_figure(report.ranks),
    }
    return {title: figure for title, figure in figures.items() if figure is not None}


def as_script(figure: Figure) -> Markup:
    # "</script>" inside a kernel's name would end the script: no "<" is left in the data.
    return Markup(json.dumps(_paint(figure), allow_nan=False).replace("<", "\\u003c"))


def _paint(part: object) -> object:
    """The same figure with every colour's name replaced by the colour."""
    if isinstance(part, str):
        return PAINT.get(part, part)
    if isinstance(part, dict):
        return {name: _paint(value) for name, value in part.items()}
    return [_paint(value) for value in part] if isinstance(part, list | tuple) else part


def _trace_tables(report: DrawnReport) -> list[Table]:
    ranks = [
        [
            f"{rank.rank} ({rank.file})",
            *(
                f"{us / 1000:,.3f}"
                for us in (
                    rank.total_us,
                    rank.compute_us,
                    rank.exposed_communication_us,
                    rank.memory_us,
                    rank.idle_host_us,
                    rank.idle_waiting_us,
                )
            ),
        ]
        for rank in report.ranks
    ]
    stragglers = [
        [
            f"rank {straggler.rank}: {straggler.cause}",
            f"{straggler.arrives_last_ratio:.1%}",
            f"{straggler.late_by_us / 1000:.2f}",
            f"{straggler.late_total_us / 1000:.1f}",
        ]
        for straggler in report.stragglers
    ]
    kernels = [
        [
            op.name[:MAX_NAME_CHARACTERS],
            str(rank.rank),
            op.work_class,
            str(op.count),
            f"{op.time_us / 1000:.2f}",
        ]
        for rank in report.ranks[:MAX_RANKS_WITH_KERNELS]
        for op in rank.top_ops
    ]
    terms = ["rank", "total ms", "compute", "exposed comm.", "copies", "idle, host late", "idle, waiting"]
    return [
        Table("Ranks", terms, ranks, []),
        Table("Stragglers", ["", "arrives last", "late by ms (mean)", "in total ms"], stragglers, []),
        Table("Longest kernels", ["kernel", "rank", "class", "count", "ms"], kernels, []),
    ]


def _unreadable_table(report: DrawnReport) -> Table:
    rows = [[unreadable.file, unreadable.reason] for unreadable in report.unreadable]
    return Table("Unreadable files", ["file", "reason"], rows, [])


def _change_tables(analysis: TraceAnalysis, after: TraceAnalysis | None) -> list[Table]:
    if after is None:
        return []
    change = compare(analysis.profile.ranks, after.profile.ranks)
    rows = [
        [
            term.term.replace("_", " "),
            f"{term.before_us:,.1f}",
            f"{term.after_us:,.1f}",
            f"{term.change_us:+,.1f}",
        ]
        for term in change.terms
    ]
    title = f"Compared with {after.profile.folder} (µs per {change.per})"
    return [Table(title, ["term", "before", "after", "change"], rows, [])]


def _prediction_tables(check: PredictionCheck | None) -> list[Table]:
    if check is None:
        return []
    comparison = check.comparison
    rows = [_prediction_row(term) for term in (*comparison.terms, comparison.step_time)]
    columns = ["term", "measured ms", "predicted ms", "error", "calibrated ms", "error"]
    return [Table(f"Measured and predicted, one {comparison.per}", columns, rows, comparison.notes)]


def _prediction_row(term: TermComparison) -> list[str]:
    return [
        term.term.replace("_", " "),
        _milliseconds(term.measured_s),
        _milliseconds(term.predicted_s),
        _error(term.predicted_error_ratio),
        _milliseconds(term.calibrated_s),
        _error(term.calibrated_error_ratio),
    ]


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.1f}"


def _error(ratio: float | None) -> str:
    return "-" if ratio is None else signed_percent(ratio)


def _calibration_tables(check: PredictionCheck | None) -> list[Table]:
    if check is None:
        return []
    rows = [
        [
            f"{constant.name}: from {constant.source}" + (" (its bound)" if constant.is_bounded else ""),
            f"{constant.default:.3g}",
            f"{constant.value:.3g}",
        ]
        for constant in check.comparison.coefficients
    ]
    title = "The cost model, calibrated to this cluster"
    return [Table(title, ["constant", "default", "measured"], rows, [])]
