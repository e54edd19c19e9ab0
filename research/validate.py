"""`make validate`: predicts each published run by a fit that has not seen it.

Writes docs/validation.md with its plot, and kb_seed/validation.json, which the pages read.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from research.fit import (
    MEASUREMENTS,
    REPO,
    OutOfFold,
    Table,
    cross_validate,
    group_folds,
    learn_intervals,
    source_folds,
    tabulate,
    take_keys,
)
from research.published import Measurement, read_measurements
from tools.cost.calibration import interval
from tools.cost.constants import resolve
from tools.cost.inputs import Array
from tools.cost.memory import GIB, memory_settings
from tools.cost.predict import evaluate
from tools.cost.validation import MemoryScore, Point, RunKind, Score, Validation
from tools.errors import AsapError

Mask = NDArray[np.bool_]
Grouping = Literal["rows", "source", "device"]


@dataclass(frozen=True)
class Outcome:
    """Measured, predicted by a fit without the row, and the interval learned without it."""

    measured_s: Array
    predicted_s: Array
    low_s: Array
    high_s: Array


def score(outcome: Outcome, rows: Mask, section: str, grouped_by: Grouping, name: str) -> Score:
    relative = outcome.predicted_s[rows] / outcome.measured_s[rows] - 1.0
    error = np.abs(relative)
    inside = (outcome.low_s <= outcome.measured_s) & (outcome.measured_s <= outcome.high_s)
    return Score(
        section=section,
        grouped_by=grouped_by,
        name=name,
        rows=int(rows.sum()),
        mape=float(error.mean()),
        median=float(np.median(error)),
        bias=float(np.median(relative)),
        within_10=float((error <= 0.1).mean()),
        coverage=float(inside[rows].mean()),
    )


def memory_score(predicted_gib: Array, measured_gib: Array, fits: Mask) -> MemoryScore:
    """Error over the rows with a published peak (else NaN), and the share of all rows predicted to fit."""
    known = ~np.isnan(measured_gib)
    error = np.abs(predicted_gib[known] / measured_gib[known] - 1.0)
    return MemoryScore(
        name="all", rows=int(known.sum()), mape=float(error.mean()), fits_share=float(fits.mean())
    )


HEADER = (
    "| {} | rows | MAPE | median | bias | within 10% | 80% interval holds |\n" + "|---" + "|---:" * 6 + "|"
)


def report(validation: Validation, plot: str) -> str:
    """The page docs/validation.md: a table per section."""
    lines = ["# Validation of the cost model", "", "Made by `make validate`; do not edit.", ""]
    lines += [f"![predicted against measured]({plot})", ""]
    for section, scores in groupby(validation.rows, key=lambda row: (row.section, row.grouped_by)):
        lines += [f"## {section[0]}", "", HEADER.format(section[1]), *map(_line, scores), ""]
    lines += [
        "## Memory",
        "",
        "| rows | with a published peak | MAPE | said to fit (all ran) |",
        "|---|---:|---:|---:|",
    ]
    lines += [f"| {m.name} | {m.rows} | {m.mape:.1%} | {m.fits_share:.1%} |" for m in validation.memory]
    return "\n".join(lines) + "\n"


def _line(s: Score) -> str:
    figures = f"{s.mape:.1%} | {s.median:.1%} | {s.bias:+.1%} | {s.within_10:.0%} | {s.coverage:.0%}"
    return f"| {s.name} | {s.rows} | {figures} |"


def to_json(validation: Validation) -> str:
    """A line per row, so that a diff shows which scores changed."""
    lists = []
    for name in Validation.model_fields:
        items = ",\n".join(item.model_dump_json() for item in getattr(validation, name))
        lists.append(f'"{name}": [\n{items}\n]')
    return "{" + ",\n".join(lists) + "}\n"


SIZE, MARGIN = 640, 60
COLOURS = {"dense": "#2563eb", "moe": "#ea580c", "small": "#9ca3af"}
LABELS = {"dense": "dense", "moe": "mixture of experts", "small": "very small models (apart)"}


def scatter_svg(points: Sequence[Point]) -> str:
    times = [time_s for point in points for time_s in (point.measured_s, point.predicted_s)]
    low, high = 10.0 ** np.floor(np.log10(min(times))), 10.0 ** np.ceil(np.log10(max(times)))
    scale = _Scale(low, high)
    parts = [
        _frame(),
        *_band(scale),
        *_ticks(scale),
        *_dots(scale, points),
        *_legend(),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIZE} {SIZE}" font-family="sans-serif" '
        f'font-size="13">\n<rect width="{SIZE}" height="{SIZE}" fill="white"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


class _Scale:
    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = float(np.log10(low)), float(np.log10(high))

    def x(self, value: float) -> float:
        share = (float(np.log10(value)) - self.low) / (self.high - self.low)
        return MARGIN + share * (SIZE - 2 * MARGIN)

    def y(self, value: float) -> float:
        return SIZE - self.x(value)


def _frame() -> str:
    inner = SIZE - 2 * MARGIN
    middle = SIZE / 2
    return (
        f'<rect x="{MARGIN}" y="{MARGIN}" width="{inner}" height="{inner}" fill="none" stroke="#374151"/>'
        f'<text x="{middle}" y="{SIZE - 15}" text-anchor="middle">measured step time, seconds</text>'
        f'<text x="18" y="{middle}" text-anchor="middle" transform="rotate(-90 18 {middle})">'
        "predicted with the row's group left out, seconds</text>"
    )


def _band(scale: _Scale) -> list[str]:
    low, high = 10**scale.low, 10**scale.high
    lines = []
    for factor, style in ((1.0, 'stroke="#111827"'), (1.1, 'stroke="#9ca3af" stroke-dasharray="4"')):
        for f in {factor, 1.0 / factor}:
            x1, x2 = max(low, low / f), min(high, high / f)
            start = f'x1="{scale.x(x1):.1f}" y1="{scale.y(x1 * f):.1f}"'
            end = f'x2="{scale.x(x2):.1f}" y2="{scale.y(x2 * f):.1f}"'
            lines.append(f"<line {start} {end} {style}/>")
    return lines


def _ticks(scale: _Scale) -> list[str]:
    marks = []
    for power in range(round(scale.low), round(scale.high) + 1):
        value = 10.0**power
        marks.append(
            f'<text x="{scale.x(value):.1f}" y="{SIZE - MARGIN + 18}" text-anchor="middle">{value:g}</text>'
        )
        marks.append(
            f'<text x="{MARGIN - 6}" y="{scale.y(value) + 4:.1f}" text-anchor="end">{value:g}</text>'
        )
    return marks


def _dots(scale: _Scale, points: Sequence[Point]) -> list[str]:
    return [
        f'<circle cx="{scale.x(p.measured_s):.1f}" cy="{scale.y(p.predicted_s):.1f}" r="3" '
        f'fill="{COLOURS[p.kind]}" opacity="0.55"/>'
        for p in points
    ]


def _legend() -> list[str]:
    rows = []
    for number, (kind, label) in enumerate(LABELS.items()):
        y = MARGIN + 20 + 18 * number
        rows.append(f'<circle cx="{MARGIN + 16}" cy="{y - 4}" r="4" fill="{COLOURS[kind]}"/>')
        rows.append(f'<text x="{MARGIN + 28}" y="{y}">{label}</text>')
    rows.append(f'<text x="{MARGIN + 10}" y="{MARGIN + 80}" fill="#6b7280">dashed: 10% off</text>')
    return rows


PLOT = "validation.svg"
DATA = REPO / "kb_seed" / "validation.json"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make validate", description=__doc__)
    parser.add_argument("--measurements", type=Path, default=MEASUREMENTS, help="JSONL file of measured runs")
    parser.add_argument(
        "--output", type=Path, default=REPO / "docs", help="folder for validation.md and its plot"
    )
    parser.add_argument("--data", type=Path, default=DATA, help="file for the scores as JSON")
    options = parser.parse_args(arguments)
    try:
        validation = validate(read_measurements(options.measurements))
    except AsapError as error:
        print(f"validate: error: {error}", file=sys.stderr)
        return 2
    options.output.mkdir(parents=True, exist_ok=True)
    options.data.write_text(to_json(validation))
    (options.output / PLOT).write_text(scatter_svg(validation.points))
    text = report(validation, PLOT)
    (options.output / "validation.md").write_text(text)
    print(text)
    return 0


def validate(rows: Sequence[Measurement]) -> Validation:
    table = tabulate(rows)
    by_group = cross_validate(table, group_folds(table.groups))
    by_source = cross_validate(table, source_folds(table.sources))
    outcome = with_intervals(table, by_group, by_group, by_source)
    left_out = with_intervals(table, by_source, by_group, by_source)
    headline, moe = table.headline, np.array([row.scenario.model.is_moe for row in rows])
    overall = {
        "all": headline,
        "dense": headline & ~moe,
        "mixture of experts": headline & moe,
        "very small models, apart": ~headline,
    }
    sources = _masks([row.source for row in rows])
    devices = _masks([row.scenario.cluster.device for row in rows])
    sections: list[tuple[str, Grouping, Outcome, dict[str, Mask]]] = [
        ("Groups left out in turn", "rows", outcome, overall),
        ("By source", "source", outcome, sources),
        ("By device", "device", outcome, devices),
        ("Whole sources left out in turn", "rows", left_out, {"all, whole source left out": headline}),
        ("By source, each left out whole", "source", left_out, sources),
    ]
    kinds = _kinds(rows, table)
    return Validation(
        rows=tuple(
            score(result, mask, section, grouping, name)
            for section, grouping, result, masks in sections
            for name, mask in masks.items()
        ),
        memory=(_memory(rows, table),),
        points=tuple(
            Point(measured_s=float(m), predicted_s=float(p), kind=kind)
            for m, p, kind in zip(table.measured_s, by_group.predicted_s, kinds, strict=True)
        ),
    )


def with_intervals(table: Table, result: OutOfFold, by_group: OutOfFold, by_source: OutOfFold) -> Outcome:
    """Intervals of a fold are learned from the other folds' residuals (cross-conformal)."""
    low, high = np.zeros(len(table.sources)), np.zeros(len(table.sources))
    for fold in np.unique(result.fold_of):
        test, others = np.flatnonzero(result.fold_of == fold), np.flatnonzero(result.fold_of != fold)
        model = learn_intervals(table, by_group, by_source, others)
        keys = take_keys(table.keys, test)
        low[test], high[test] = interval(model, table.inputs.take(test), keys, result.predicted_s[test])
    return Outcome(table.measured_s, result.predicted_s, low, high)


def _masks(labels: Sequence[str]) -> dict[str, Mask]:
    names = np.array(labels)
    return {str(name): names == name for name in np.unique(names)}


def _kinds(rows: Sequence[Measurement], table: Table) -> list[RunKind]:
    return [
        ("moe" if row.scenario.model.is_moe else "dense") if counted else "small"
        for row, counted in zip(rows, table.headline, strict=True)
    ]


def _memory(rows: Sequence[Measurement], table: Table) -> MemoryScore:
    settings = memory_settings(table.keys.framework, [row.scenario.training.precision for row in rows])
    costs = evaluate(table.inputs, resolve(table.keys, {}), settings)
    measured: Array = np.array(
        [np.nan if row.peak_memory_gib is None else row.peak_memory_gib for row in rows]
    )
    return memory_score(costs.memory_bytes / GIB, measured, costs.fits)


if __name__ == "__main__":
    raise SystemExit(main())
