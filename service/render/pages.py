"""Pages of one file that need no network and no server: `asap diagnose --html` and `asap probe`.

Names from traces are untrusted: everything is escaped, in the page and in the scripts' data.
"""

import json
from dataclasses import dataclass

from markupsafe import Markup

from service.render.plotly import (
    PALETTE,
    Figure,
    PlotlyJson,
    frame,
    label,
    line,
    log_axis,
    number,
    plotly_script,
)
from service.render.report import html_environment
from service.render.text import signed_percent
from service.render.trace_figures import (
    COLOURS,
    KINDS,
    Transfer,
    allocated_memory_figure,
    collectives_figure,
    measured_collectives_figure,
    measured_roofline_figure,
    terms_figure,
    timeline_figure,
    waiting_figure,
)
from tools.hardware import get_device
from tools.probe.report import ProbeReport, link_name
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
    template = html_environment().get_template(TEMPLATE)
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


def render_probe(report: ProbeReport, title: str) -> str:
    """The whole page as text; needs no network and no server."""
    figures = {
        "Collectives": _collectives(report),
        "Matrix products by rank": _products(report),
        "Links": _links(report),
    }
    template = html_environment().get_template(TEMPLATE)
    return template.render(
        heading=title,
        folder="",
        diagnosis=None,
        comparisons=[_comparisons(report), _findings(report)],
        legend={},
        figures={name: as_script(figure) for name, figure in figures.items() if figure},
        tables=[],
        plotly=Markup(plotly_script()),
    )


def comparison_rows(report: ProbeReport) -> list[list[str]]:
    return [
        [
            row.name,
            f"{row.catalogue:.4g} {row.unit}",
            f"{row.assumed:.4g} {row.unit}",
            f"{row.measured:.4g} {row.unit}",
            f"{row.measured / row.assumed - 1:+.0%}",
        ]
        for row in report.comparisons
    ]


COLUMNS = ["figure", "catalogue", "assumed", "measured", "off by"]
"""Assumed: by predictions, the catalogue's figure times the usual efficiency."""


def _comparisons(report: ProbeReport) -> Table:
    notes = [f"not measured: {reason}" for reason in report.probe.unavailable]
    return Table("Beside the catalogue", COLUMNS, comparison_rows(report), notes)


def _findings(report: ProbeReport) -> Table:
    rows = [[finding.says] for finding in report.findings]
    return Table("Slow ranks and links", ["what"], rows, [] if rows else ["No rank and no link is slow."])


def _collectives(report: ProbeReport) -> Figure | None:
    transfers = [
        Transfer(
            f"{c.kind} over {c.group} ({c.size})",
            c.message_bytes,
            c.bus_bytes_per_s,
            f"{c.kind} over {c.size} ranks ({c.group}), {c.seconds * 1e3:.3g} ms",
        )
        for c in report.probe.collectives
    ]
    if not transfers:
        return None
    device = get_device(report.probe.settings.device)
    links = [("link in the node", device.intra_node_bytes_per_s)]
    if report.probe.nodes > 1:
        links.append(("network per device", device.inter_node_bytes_per_s))
    return collectives_figure(transfers, links)


def _products(report: ProbeReport) -> Figure | None:
    products = report.probe.products
    if not products:
        return None
    cases = sorted({(p.precision, p.m * p.n * p.k, f"{p.m}x{p.n}x{p.k}") for p in products})
    data: list[PlotlyJson] = []
    for index, (precision, _, shape) in enumerate(cases):
        own = [p for p in products if p.precision == precision and f"{p.m}x{p.n}x{p.k}" == shape]
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": label(f"{precision} {shape}"),
                "x": [p.rank for p in own],
                "y": [p.flops_per_s / 1e12 for p in own],
                "line": {"color": PALETTE[index % len(PALETTE)]},
            }
        )
    ranks = [0.0, float(len(report.probe.ranks) - 1)]
    peaks = get_device(report.probe.settings.device).peak_flops
    for precision in report.probe.settings.precisions:
        if precision in peaks:
            peak = peaks[precision] / 1e12
            data.append(line(ranks, [peak, peak], f"catalogue, {precision}: {peak:.4g} TFLOP/s"))
    layout = frame("rank", "TFLOP/s", 400, showlegend=True)
    layout["yaxis"] = log_axis("TFLOP/s", [y for trace in data for y in trace["y"]], number)
    return {"data": data, "layout": layout}


def _links(report: ProbeReport) -> Figure | None:
    links = report.probe.links
    if not links:
        return None
    data = [
        {
            "type": "bar",
            "name": kind,
            "x": [label(link_name(report.probe, link)) for link in links if link.crosses == crosses],
            "y": [link.bytes_per_s / 1e9 for link in links if link.crosses == crosses],
            "text": [f"{link.latency_s * 1e6:.3g} µs" for link in links if link.crosses == crosses],
            "marker": {"color": PALETTE[int(crosses)]},
        }
        for kind, crosses in (("in a node", False), ("between nodes", True))
    ]
    return {"data": data, "layout": frame("", "GB/s, one way", 380, showlegend=True)}
