"""Measured beside predicted in the terminal: the terms of the step, and the constants that the traces set."""

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from service.cli.cells import said

_NEAR_RATIO = 0.1


def print_prediction(console: Console, comparison: dict[str, Any]) -> None:
    """The comparison, then what it makes of the cost model."""
    console.print(_term_table(comparison))
    console.print(_coefficient_table(comparison["coefficients"]))
    for note in comparison["notes"]:
        console.print(said(note, style="dim"))


def _term_table(comparison: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    table.title = f"\nMeasured and predicted, ms of one {comparison['per']}"
    table.add_column("term", no_wrap=True)
    for name in ("measured", "predicted", "error", "calibrated", "error"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in (*comparison["terms"], comparison["step_time"]):
        table.add_row(
            row["term"],
            _milliseconds(row["measured_s"]),
            _milliseconds(row["predicted_s"]),
            _error_text(row["predicted_error_ratio"]),
            _milliseconds(row["calibrated_s"]),
            _error_text(row["calibrated_error_ratio"]),
            style="bold" if row["term"] == "step_time" else None,
        )
    return table


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.1f}"


def signed_percent(ratio: float) -> str:
    """Without a sign where it rounds to nothing."""
    text = f"{ratio:+.0%}"
    return "0%" if text in ("+0%", "-0%") else text


def _error_text(ratio: float | None) -> Text:
    """Signed; far off is red."""
    if ratio is None:
        return Text("-")
    return Text(signed_percent(ratio), style="green" if abs(ratio) <= _NEAR_RATIO else "red")


def _coefficient_table(coefficients: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    table.title = "\nThe cost model, calibrated to this cluster"
    table.add_column("constant", no_wrap=True)
    for name in ("default", "measured"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("from")
    for one in coefficients:
        mark = " (its bound)" if one["is_bounded"] else ""
        figures = (f"{one['default']:.3g}", f"{one['value']:.3g}")
        table.add_row(one["name"], *figures, said(f"{one['source']}{mark}"))
    return table
