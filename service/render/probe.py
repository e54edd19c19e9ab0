"""The page of a probe: figures beside the catalogue's, collectives, products and links, what is slow."""

from jinja2 import PackageLoader
from markupsafe import Markup

from service.render.diagnose_page import TEMPLATE, Table, as_script
from service.render.html import make_environment
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
from service.render.trace_figures import Transfer, collectives_figure
from tools.hardware import get_device
from tools.probe.report import ProbeReport, link_name


def render_probe(report: ProbeReport, title: str) -> str:
    """The whole page as text; needs no network and no server."""
    figures = {
        "Collectives": _collectives(report),
        "Matrix products by rank": _products(report),
        "Links": _links(report),
    }
    template = make_environment(PackageLoader("service.render")).get_template(TEMPLATE)
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
