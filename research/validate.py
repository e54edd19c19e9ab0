"""`make validate`: predicts each published run by a fit that has not seen it.

Writes docs/validation.md with its plot, and kb_seed/validation.json, which the pages read.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from research.fit import (
    MEASUREMENTS,
    REPO,
    SWEEPS,
    OutOfFold,
    Table,
    concat_tables,
    cross_validate,
    fit,
    group_folds,
    learn_intervals,
    source_folds,
    tabulate,
    take_keys,
)
from research.published import (
    SWEEP_SOURCE,
    Measurement,
    SweptPlan,
    peak_memory,
    read_measurements,
    read_sweep_plans,
)
from tools.cost.calibration import interval, shipped_calibration
from tools.cost.constants import resolve
from tools.cost.inputs import Array
from tools.cost.predict import predict
from tools.cost.step import step_breakdown
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


def mean_over_sources(
    outcome: Outcome, rows: Mask, sources: NDArray[np.str_], section: str, name: str
) -> Score:
    """Every source counts the same, however many rows it has: a user is a source nobody saw."""
    each = [
        score(outcome, rows & (sources == source), section, "rows", name)
        for source in np.unique(sources[rows])
    ]
    fields = ("mape", "median", "bias", "within_10", "coverage")
    means = {field: float(np.mean([getattr(scores, field) for scores in each])) for field in fields}
    return Score(section=section, grouped_by="rows", name=name, rows=int(rows.sum()), **means)


def memory_score(name: str, predicted_gib: Array, measured_gib: Array, fits: Mask) -> MemoryScore:
    """Error over the rows with a published peak (else NaN), and the share of all rows predicted to fit."""
    known = ~np.isnan(measured_gib)
    error = np.abs(predicted_gib[known] / measured_gib[known] - 1.0)
    return MemoryScore(
        name=name,
        rows=int(known.sum()),
        mape=float(error.mean()) if known.any() else 0.0,
        fits_share=float(fits.mean()),
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
        "| plans | with a published peak | MAPE | likely to fit |",
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
    parts = [_frame(), *_band(scale), *_ticks(scale), *_dots(scale, points), *_legend()]
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
        "predicted with the row's source left out, seconds</text>"
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
        "--sweeps", type=Path, default=SWEEPS, help="JSONL file of whole sweeps; absent: none"
    )
    parser.add_argument(
        "--output", type=Path, default=REPO / "docs", help="folder for validation.md and its plot"
    )
    parser.add_argument("--data", type=Path, default=DATA, help="file for the scores as JSON")
    options = parser.parse_args(arguments)
    try:
        validation = validate(read_measurements(options.measurements), read_sweep_plans(options.sweeps))
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


def validate(rows: Sequence[Measurement], swept: Sequence[SweptPlan] = ()) -> Validation:
    measured = [p.measurement for p in swept if p.measurement and p.measurement.source == SWEEP_SOURCE]
    table, always = tabulate(rows), tabulate(measured) if measured else None
    start = fit(concat_tables(table, always) if always else table).shifts
    by_source = cross_validate(table, source_folds(table.sources), always, start)
    by_group = cross_validate(table, group_folds(table.groups), always, start)
    left_out = with_intervals(table, by_source, by_group, by_source)
    outcome = with_intervals(table, by_group, by_group, by_source)
    headline, moe = table.headline, np.array([row.scenario.model.is_moe for row in rows])
    overall = {
        "all": headline,
        "dense": headline & ~moe,
        "mixture of experts": headline & moe,
        "very small models, apart": ~headline,
    }
    sources, devices = _masks(table.sources), _masks([row.scenario.cluster.device for row in rows])
    names = np.array(table.sources)
    first = "Whole sources left out in turn, mean over sources"
    sections: list[tuple[str, Grouping, Outcome, dict[str, Mask]]] = [
        ("Whole sources left out in turn, every row alike", "rows", left_out, overall),
        ("By source, each left out whole", "source", left_out, sources),
        ("Groups left out in turn", "rows", outcome, overall),
        ("By device, groups left out", "device", outcome, devices),
    ]
    kinds = _kinds(rows, table)
    return Validation(
        rows=(
            *(
                mean_over_sources(left_out, mask, names, first, name)
                for name, mask in overall.items()
                if mask.any()
            ),
            *(
                score(result, mask, section, grouping, name)
                for section, grouping, result, masks in sections
                for name, mask in masks.items()
                if mask.any()
            ),
            *(_sweep_scores(table, tabulate(measured), measured, swept) if measured else ()),
        ),
        memory=_memory_scores(rows, swept),
        points=tuple(
            Point(measured_s=float(m), predicted_s=float(p), kind=kind)
            for m, p, kind in zip(table.measured_s, by_source.predicted_s, kinds, strict=True)
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


NEAR_BEST = 1.5
"""Plans that take at most so many times as long as the best of their workload: what a user would look at."""


def _sweep_scores(
    table: Table, sweep: Table, measured: Sequence[Measurement], swept: Sequence[SweptPlan]
) -> Iterator[Score]:
    """The sweep predicted by a fit without it, and with its other workloads in it."""
    workload_of = {p.measurement.id: p.workload for p in swept if p.measurement}
    workloads = np.array([workload_of[row.id] for row in measured])
    near = np.zeros(len(measured), dtype=bool)
    for name in np.unique(workloads):
        inside = workloads == name
        near |= inside & (sweep.measured_s <= NEAR_BEST * sweep.measured_s[inside].min())
    without = fit(table)
    alone = step_breakdown(sweep.inputs, resolve(sweep.keys, without.shifts)).total
    folds = [np.flatnonzero(workloads == name) for name in np.unique(workloads)]
    among = cross_validate(sweep, folds, table, without.shifts).predicted_s
    section = "The sweep, plans near the best of their workload"
    for name, predicted in (("left out whole", alone), ("its workloads left out in turn", among)):
        low, high = interval(shipped_calibration().intervals, sweep.inputs, sweep.keys, predicted)
        yield score(Outcome(sweep.measured_s, predicted, low, high), near, section, "rows", name)


def _masks(labels: Sequence[str]) -> dict[str, Mask]:
    names = np.array(labels)
    return {str(name): names == name for name in np.unique(names)}


def _kinds(rows: Sequence[Measurement], table: Table) -> list[RunKind]:
    return [
        ("moe" if row.scenario.model.is_moe else "dense") if counted else "small"
        for row, counted in zip(rows, table.headline, strict=True)
    ]


def _memory_scores(rows: Sequence[Measurement], swept: Sequence[SweptPlan]) -> tuple[MemoryScore, ...]:
    """Of published runs by source, and of the sweep's plans that ran and that crashed."""
    with_peak = sorted({row.source for row in rows if row.peak_memory_gib is not None})
    scores = [_memory("published runs", rows)]
    scores += [_memory(source, [row for row in rows if row.source == source]) for source in with_peak]
    ran = [plan.measurement for plan in swept if plan.measurement]
    crashed = [plan.scenario for plan in swept if plan.measurement is None]
    if ran and crashed:
        scores.append(_memory("plans of sweeps that ran", ran))
        fits = np.array([prediction.fits for prediction in predict(crashed)])
        scores.append(memory_score("plans of sweeps that crashed", np.zeros(1), np.full(1, np.nan), fits))
    return tuple(scores)


def _memory(name: str, rows: Sequence[Measurement]) -> MemoryScore:
    predictions = predict([row.scenario for row in rows])
    predicted = np.array([prediction.peak_memory_gib for prediction in predictions])
    fits = np.array([prediction.fits for prediction in predictions])
    return memory_score(name, predicted, peak_memory(rows), fits)


if __name__ == "__main__":
    raise SystemExit(main())
