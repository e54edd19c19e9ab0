"""Pages of one file that need no network and no server: `asap diagnose --html` and `asap probe`.

Names from traces are untrusted: everything is escaped, in the page and in the scripts' data.
"""

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

from service.render.charts import (
    PALETTE,
    SCRIPTS,
    STYLES,
    Chart,
    Layer,
    axis,
    boxes,
    chart,
    chart_file,
    label,
    line,
    log_axis,
    rows_axis,
    rows_height,
)
from service.render.report import html_environment
from service.render.text import signed_percent
from service.render.trace_figures import (
    COLOURS,
    KINDS,
    Transfer,
    allocated_memory_chart,
    collectives_chart,
    measured_collectives_chart,
    measured_roofline_chart,
    terms_chart,
    timeline_chart,
    waiting_chart,
)
from tools.hardware import get_device
from tools.probe.report import ProbeReport, link_name
from tools.trace.compare import PredictionCheck, TraceChange
from tools.trace.rank_profile import find_device
from tools.trace.report import DrawnReport, TraceAnalysis

PAINT = {
    "--page": "#ffffff", "--card": "#f6f7f9", "--ink": "#1c2026", "--soft": "#59616d", "--rule": "#dde1e7",
    "--edge": "#8b94a1", "--compute": "#33658a", "--memory_bound_ops": "#8fb7d6", "--optimizer": "#7b9c75",
    "--tp_comm_exposed": "#b94a34", "--cp_comm_exposed": "#e39b77", "--ep_comm_exposed": "#94558a",
    "--dp_comm_exposed": "#e0a93b", "--accent": "#33658a", "--on-dark": "#ffffff", "--on-light": "#1c2026",
}  # fmt: skip
"""The colours that the web pages take from their stylesheet."""
MAX_RANKS_WITH_KERNELS = 8
MAX_NAME_CHARACTERS = 140
RANK_COLUMNS = ("total ms", "compute", "exposed comm.", "copies", "idle, host late", "idle, waiting")
COLUMNS = ["figure", "catalogue", "assumed", "measured", "off by"]
"""Assumed: by predictions, the catalogue's figure times the usual efficiency."""


class PageTable(NamedTuple):
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


def render_page(
    analysis: TraceAnalysis, change: TraceChange | None = None, check: PredictionCheck | None = None
) -> str:
    """The diagnosis of a folder of traces, alone, beside another one or beside a prediction."""
    report = analysis.drawn()
    device = analysis.device or find_device(next((r.device for r in report.ranks if r.device), None))
    changes = _change_tables(change) if change else []
    return _render(
        comparisons=[*changes, *([_prediction_table(check)] if check else [])],
        figures={
            "Timeline": timeline_chart(report.drawing.strips) if report.drawing.strips else None,
            "Where the time goes": terms_chart(report.ranks),
            "Transfer and waiting": waiting_chart(report.collectives),
            "Collectives": measured_collectives_chart(report.collectives),
            "Roofline": measured_roofline_chart(report.drawing.points, device),
            "Memory": allocated_memory_chart(report.ranks),
        },
        tables=_trace_tables(report, check),
        folder=analysis.profile.folder,
        diagnosis=report.diagnosis,
        legend={kind: PAINT[colour] for kind, colour in zip(KINDS, COLOURS, strict=True)},
    )


def render_probe(report: ProbeReport, title: str) -> str:
    """What a probe measured beside the catalogue."""
    unavailable = [f"not measured: {reason}" for reason in report.probe.unavailable]
    slow = [[finding.message] for finding in report.findings]
    quiet = [] if slow else ["No rank and no link is slow."]
    return _render(
        comparisons=[
            PageTable("Beside the catalogue", COLUMNS, comparison_rows(report), unavailable),
            PageTable("Slow ranks and links", ["what"], slow, quiet),
        ],
        figures={
            "Collectives": _collectives(report),
            "Matrix products by rank": _products(report),
            "Links": _links(report),
        },
        heading=title,
        folder="",
        diagnosis=None,
        legend={},
    )


def comparison_rows(report: ProbeReport) -> list[list[str]]:
    return [
        [
            row.name,
            *(f"{value:.4g} {row.unit}" for value in (row.catalogue, row.assumed, row.measured)),
            f"{row.measured / row.assumed - 1:+.0%}",
        ]
        for row in report.comparisons
    ]


def _render(
    comparisons: Sequence[PageTable],
    figures: Mapping[str, Chart | None],
    tables: Sequence[PageTable] = (),
    **content: object,
) -> str:
    """The whole page as text; figures without data are left out."""
    # "</script>" inside a kernel's name would end the script: no "<" is left in the data.
    drawn = {
        title: Markup(json.dumps(figure, allow_nan=False).replace("<", "\\u003c"))
        for title, figure in figures.items()
        if figure
    }
    files = {
        "paint": Markup("".join(f"{name}: {colour}; " for name, colour in PAINT.items())),
        "styles": Markup("".join(chart_file(*path) for path in STYLES.values())),
        "uplot": Markup(chart_file(*SCRIPTS["uplot.js"])),
        "charts": Markup(chart_file(*SCRIPTS["charts.js"])),
    }
    shown = {"comparisons": comparisons, "figures": drawn, "tables": tables, **files, **content}
    return html_environment().get_template("diagnose.html.jinja").render(shown)


def _trace_tables(report: DrawnReport, check: PredictionCheck | None) -> list[PageTable]:
    ranks = []
    for rank in report.ranks:
        busy_us = (rank.total_us, rank.compute_us, rank.exposed_communication_us, rank.memory_us)
        times_us = (*busy_us, rank.idle_host_us, rank.idle_waiting_us)
        ranks.append([f"{rank.rank} ({rank.file})", *(f"{us / 1000:,.3f}" for us in times_us)])
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
            f"{op.time_us / 1e3:.2f}",
        ]
        for rank in report.ranks[:MAX_RANKS_WITH_KERNELS]
        for op in rank.top_ops
    ]
    constants = [
        [
            f"{constant.name}: from {constant.source}" + (" (its bound)" if constant.is_bounded else ""),
            f"{constant.default:.3g}",
            f"{constant.value:.3g}",
        ]
        for constant in (check.comparison.coefficients if check else ())
    ]
    unreadable = [[file.file, file.reason] for file in report.unreadable]
    return [
        PageTable("Ranks", ["rank", *RANK_COLUMNS], ranks),
        PageTable("Stragglers", ["", "arrives last", "late by ms (mean)", "in total ms"], stragglers),
        PageTable("Longest kernels", ["kernel", "rank", "class", "count", "ms"], kernels),
        PageTable(
            "The cost model, calibrated to this cluster", ["constant", "default", "measured"], constants
        ),
        PageTable("Unreadable files", ["file", "reason"], unreadable),
    ]


def _change_tables(change: TraceChange) -> list[PageTable]:
    terms = [
        [
            term.term.replace("_", " "),
            f"{term.before_us:,.1f}",
            f"{term.after_us:,.1f}",
            f"{term.change_us:+,.1f}",
        ]
        for term in change.terms
    ]
    places = [
        [part.where, part.change, part.kind, f"{part.before_us:,.1f}", f"{part.change_us:+,.1f}"]
        for part in change.parts
    ]
    title = f"Before and after (µs per {change.per})"
    return [
        PageTable(title, ["term", "before", "after", "change"], terms, [c.summary for c in change.causes]),
        PageTable("What changed, adding up", ["where", "how", "kind", "before", "change"], places),
    ]


def _prediction_table(check: PredictionCheck) -> PageTable:
    comparison, rows = check.comparison, []
    notes = [note for note in (comparison.far_apart, *comparison.notes) if note]
    for term in (*comparison.terms, comparison.step_time):
        row = [term.term.replace("_", " "), f"{term.measured_s * 1000:,.1f}"]
        for predicted_s, error in (
            (term.predicted_s, term.predicted_error_ratio),
            (term.calibrated_s, term.calibrated_error_ratio),
        ):
            row += [f"{predicted_s * 1000:,.1f}", "-" if error is None else signed_percent(error)]
        rows.append(row)
    columns = ["term", "measured ms", "predicted ms", "error", "calibrated ms", "error"]
    return PageTable(f"Measured and predicted, one {comparison.per}", columns, rows, notes)


def _collectives(report: ProbeReport) -> Chart | None:
    transfers = [
        Transfer(
            f"{c.kind} over {c.group} ({c.size})",
            c.message_bytes,
            c.bus_bytes_per_s,
            f"{c.kind} over {c.size} ranks ({c.group}), {c.seconds * 1e3:.3g} ms",
        )
        for c in report.probe.collectives
    ]
    device = get_device(report.probe.settings.device)
    links = [("link in the node", device.intra_node_bytes_per_s)]
    if report.probe.nodes > 1:
        links.append(("network per device", device.inter_node_bytes_per_s))
    return collectives_chart(transfers, links) if transfers else None


def _products(report: ProbeReport) -> Chart | None:
    products = report.probe.products
    if not products:
        return None
    cases = sorted({(p.precision, p.m * p.n * p.k, f"{p.m}x{p.n}x{p.k}") for p in products})
    layers = list[Layer]()
    for index, (precision, _, shape) in enumerate(cases):
        runs = [p for p in products if p.precision == precision and f"{p.m}x{p.n}x{p.k}" == shape]
        name, rates = label(f"{precision} {shape}"), [p.flops_per_s / 1e12 for p in runs]
        drawn = line(name, [p.rank for p in runs], rates, "solid", PALETTE[index % len(PALETTE)])
        drawn["texts"] = [
            f"rank {p.rank}, {name}: {rate:.4g} TFLOP/s" for p, rate in zip(runs, rates, strict=True)
        ]
        layers.append(drawn)
    ranks = [0.0, float(len(report.probe.ranks) - 1)]
    peaks = get_device(report.probe.settings.device).peak_flops
    for precision in report.probe.settings.precisions:
        if precision in peaks:
            peak = peaks[precision] / 1e12
            layers.append(line(f"catalogue, {precision}: {peak:.4g} TFLOP/s", ranks, [peak, peak]))
    rates = [y for layer in layers for y in layer["y"] if y is not None]
    return chart(axis("rank", ranks, "count"), log_axis("TFLOP/s", rates), 400, layers)


def _links(report: ProbeReport) -> Chart | None:
    links = sorted(report.probe.links, key=lambda link: link.crosses)
    if not links:
        return None
    names, rates = (
        [label(link_name(report.probe, link)) for link in links],
        [link.bytes_per_s / 1e9 for link in links],
    )
    layers = list[Layer]()
    for kind, crosses in (("in a node", False), ("between nodes", True)):
        rows = [row for row, link in enumerate(links) if link.crosses == crosses]
        texts = [f"{names[row]}: {rates[row]:.4g} GB/s, {links[row].latency_s * 1e6:.3g} µs" for row in rows]
        drawn = boxes(kind, [0.0] * len(rows), [rates[row] for row in rows], rows, texts)
        layers.append(drawn | {"colour": PALETTE[int(crosses)]})
    x = axis("GB/s, one way", rates, from_zero=True)
    return chart(x, rows_axis(names), rows_height(len(names)), layers)
