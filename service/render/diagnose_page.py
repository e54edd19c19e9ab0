"""The HTML report of `asap diagnose --html`: one file that needs no network and no server.

Names from traces are untrusted: everything is escaped, in the page and in the scripts' data.
"""

import json
from html import escape
from typing import Any

from service.cli.diagnose_tables import signed_percent
from service.render.diagnose_figures import (
    COLOURS,
    Figure,
    collectives_figure,
    memory_figure,
    roofline_figure,
    terms_figure,
    timeline_figure,
    waiting_figure,
)
from tools.trace.calibrate import PredictionCheck
from tools.trace.compare import compare
from tools.trace.report import TraceReport

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2933; }
body { margin: 0 auto; max-width: 1100px; padding: 24px; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 18px; margin: 32px 0 8px; }
.verdict { border-left: 6px solid #d1495b; background: #f7f8fa; padding: 14px 20px; margin: 16px 0; }
.verdict b { font-size: 20px; } .muted { color: #5b6470; } ul { margin: 8px 0; padding-left: 20px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 14px; }
th, td { text-align: right; padding: 4px 10px; border-bottom: 1px solid #e4e7eb; }
th:first-child, td:first-child { text-align: left; overflow-wrap: anywhere; } .wide { overflow-x: auto; }
.legend span { display: inline-block; margin-right: 18px; }
.legend i { display: inline-block; width: 12px; height: 12px; margin-right: 6px; border-radius: 2px; }
"""


def render_page(
    report: TraceReport, after: TraceReport | None = None, check: PredictionCheck | None = None
) -> str:
    """The whole page as text."""
    from plotly.offline import get_plotlyjs

    body = [
        f"<h1>Diagnosis of {escape(report.profile.folder)}</h1>",
        _verdict(report.data["diagnosis"]),
        _change(report, after) if after else "",
        _prediction(check.data) if check else "",
        _legend(),
        *_figures(report),
        _rank_table(report.data["ranks"]),
        _straggler_table(report.data["stragglers"]),
        _top_table(report.data["ranks"]),
        _constants(check.data) if check else "",
        _unreadable(report.data["unreadable"]),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>asap diagnose</title><style>{_STYLE}</style><script>{get_plotlyjs()}</script></head>"
        f"<body>{''.join(body)}</body></html>\n"
    )


def _figures(report: TraceReport) -> list[str]:
    ranks = report.profile.ranks
    figures: list[Figure | None] = [
        timeline_figure(ranks),
        terms_figure(report.data["ranks"]),
        waiting_figure(report.data["collectives"]),
        collectives_figure(report.data["collectives"]),
        roofline_figure(ranks, report.device),
        memory_figure(ranks),
    ]
    drawn = [one for one in figures if one is not None and one["data"]]
    return [_figure(number, one) for number, one in enumerate(drawn)]


def _figure(number: int, figure: Figure) -> str:
    # "</script>" inside a kernel's name would end the script: no "<" is left in the data.
    data = json.dumps(figure, allow_nan=False).replace("<", "\\u003c")
    return (
        f'<div id="figure{number}"></div><script>(function () {{ var figure = {data};'
        f' Plotly.newPlot("figure{number}", figure.data, figure.layout,'
        " {responsive: true, displayModeBar: false}); })();</script>"
    )


def _verdict(diagnosis: dict[str, Any]) -> str:
    items = "".join(f"<li>{escape(one['says'])}</li>" for one in diagnosis["evidence"])
    also = "".join(
        f"<p>Also <strong>{escape(one['bottleneck'])}</strong>: {escape(one['why'])}.</p>"
        for one in diagnosis["competing_causes"]
    )
    advice = "".join(f"<li>{escape(one)}</li>" for one in diagnosis["next_to_profile"])
    more = f"<p class=muted>To be surer:</p><ul class=muted>{advice}</ul>" if advice else ""
    return (
        f'<div class="verdict"><b>{escape(diagnosis["bottleneck"])}</b> costs'
        f" {diagnosis['severity']:.0%} of the step"
        f' <span class="muted">(confidence {diagnosis["confidence"]:.2f})</span>'
        f"<p>{escape(diagnosis['summary'])}.</p><ul>{items}</ul>{also}{more}</div>"
    )


def _legend() -> str:
    entries = "".join(
        f'<span><i style="background:{colour}"></i>{name}</span>' for name, colour in COLOURS.items()
    )
    return f'<p class="legend">{entries}</p>'


def _table(title: str, columns: list[str], rows: list[list[str]]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<h2>{escape(title)}</h2><div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _rank_table(ranks: list[dict[str, Any]]) -> str:
    keys = (
        "total_us",
        "compute_us",
        "exposed_communication_us",
        "memory_us",
        "idle_host_us",
        "idle_waiting_us",
    )
    columns = ["rank", "total ms", "compute", "exposed comm.", "copies", "idle, host late", "idle, waiting"]
    rows = [
        [f"{rank['rank']} ({rank['file']})", *(f"{rank[key] / 1000:,.3f}" for key in keys)] for rank in ranks
    ]
    return _table("Ranks", columns, rows)


def _straggler_table(stragglers: list[dict[str, Any]]) -> str:
    rows = [
        [
            f"rank {one['rank']}: {one['cause']}",
            f"{one['arrives_last_ratio']:.1%}",
            f"{one['late_by_us'] / 1000:.2f}",
            f"{one['late_total_us'] / 1000:.1f}",
        ]
        for one in stragglers
    ]
    return _table("Stragglers", ["", "arrives last", "late by ms (mean)", "in total ms"], rows)


def _top_table(ranks: list[dict[str, Any]]) -> str:
    rows = [
        [
            f"{op['name'][:140]}",
            str(rank["rank"]),
            op["class"],
            str(op["count"]),
            f"{op['time_us'] / 1000:.2f}",
        ]
        for rank in ranks[:8]
        for op in rank["top_ops"]
    ]
    return _table("Longest kernels", ["kernel", "rank", "class", "count", "ms"], rows)


def _unreadable(unreadable: list[dict[str, Any]]) -> str:
    return _table(
        "Unreadable files", ["file", "reason"], [[one["file"], one["reason"]] for one in unreadable]
    )


def _change(report: TraceReport, after: TraceReport) -> str:
    change = compare(report.profile.ranks, after.profile.ranks)
    rows = [
        [
            term["term"].replace("_", " "),
            f"{term['before_us']:,.1f}",
            f"{term['after_us']:,.1f}",
            f"{term['change_us']:+,.1f}",
        ]
        for term in change["terms"]
    ]
    title = f"Compared with {after.profile.folder} (µs per {change['per']})"
    return _table(title, ["term", "before", "after", "change"], rows)


def _prediction(comparison: dict[str, Any]) -> str:
    rows = [_prediction_row(row) for row in (*comparison["terms"], comparison["step_time"])]
    columns = ["term", "measured ms", "predicted ms", "error", "calibrated ms", "error"]
    notes = "".join(f'<p class="muted">{escape(note)}</p>' for note in comparison["notes"])
    return _table(f"Measured and predicted, one {comparison['per']}", columns, rows) + notes


def _constants(comparison: dict[str, Any]) -> str:
    rows = [
        [
            f"{one['name']}: from {one['source']}" + (" (its bound)" if one["is_bounded"] else ""),
            f"{one['default']:.3g}",
            f"{one['value']:.3g}",
        ]
        for one in comparison["coefficients"]
    ]
    return _table("The cost model, calibrated to this cluster", ["constant", "default", "measured"], rows)


def _prediction_row(row: dict[str, Any]) -> list[str]:
    errors = (row["predicted_error_ratio"], row["calibrated_error_ratio"])
    before, after = ("-" if error is None else signed_percent(error) for error in errors)
    measured, predicted, calibrated = (
        f"{row[key] * 1000:,.1f}" for key in ("measured_s", "predicted_s", "calibrated_s")
    )
    return [row["term"].replace("_", " "), measured, predicted, before, calibrated, after]
