"""`make validate`: predicts each published run by a fit that has not seen it.

Writes docs/validation.md with its plot, and kb_seed/validation.json, which the pages read.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from research.errors import Corrected, build_residual, correct, learn_intervals, learn_prior
from research.fit import (
    Indices,
    Table,
    concat_tables,
    cross_validate,
    fit,
    group_folds,
    source_folds,
    tabulate,
)
from research.published import (
    REPO,
    RUNS,
    SMALL_MODEL_SOURCE,
    SWEEP_SOURCE,
    Measurement,
    SweptPlan,
    measurements,
    peaks_gib,
    read_runs,
    sweep_plans,
)
from tools.errors import AsapError
from tools.model.calibration import shipped_calibration
from tools.model.constants import resolve
from tools.model.intervals import IntervalModel, interval
from tools.model.predict import predict
from tools.model.residual import Correction, ResidualPrior
from tools.model.validation import MemoryScore, Point, RunKind, Score, ScoreGrouping, Validation
from tools.physics.inputs import Array
from tools.physics.step import step_terms
from tools.scenario import Scenario

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Outcome:
    """Measured, predicted by a fit without the row, and the interval learned without it."""

    measured_s: Array
    predicted_s: Array
    low_s: Array
    high_s: Array


def score(outcome: Outcome, rows: Mask, section: str, grouped_by: ScoreGrouping, name: str) -> Score:
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
        half_width=float(np.median(np.sqrt(outcome.high_s / outcome.low_s)[rows]) - 1.0),
    )


def mean_over_sources(
    outcome: Outcome, rows: Mask, sources: NDArray[np.str_], section: str, name: str
) -> Score:
    """Every source counts the same, however many rows it has: a user is a source nobody saw."""
    each = [
        score(outcome, rows & (sources == source), section, "rows", name)
        for source in np.unique(sources[rows])
    ]
    fields = ("mape", "median", "bias", "within_10", "coverage", "half_width")
    means = {field: float(np.mean([getattr(scores, field) for scores in each])) for field in fields}
    return Score(section=section, grouped_by="rows", name=name, rows=int(rows.sum()), **means)


def memory_score(name: str, rows: Sequence[Measurement]) -> MemoryScore:
    """Error over the rows with a published peak, and the share of all rows predicted to fit."""
    measured, predicted = peaks_gib(rows)
    return MemoryScore(
        name=name,
        rows=len(measured),
        mape=float(np.abs(predicted / measured - 1.0).mean()) if len(measured) else 0.0,
        fits_share=_fits_share([row.scenario for row in rows]),
    )


HEADER = (
    "| {} | rows | MAPE | median | bias | within 10% | 80% interval holds | its half width |\n"
    "|---" + "|---:" * 7 + "|"
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
    errors = f"{s.mape:.1%} | {s.median:.1%} | {s.bias:+.1%} | {s.within_10:.0%}"
    figures = f"{errors} | {s.coverage:.0%} | ±{s.half_width:.0%}"
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
    parser.add_argument("--runs", type=Path, default=RUNS, help="folder or JSONL file of published runs")
    parser.add_argument(
        "--output", type=Path, default=REPO / "docs", help="folder for validation.md and its plot"
    )
    parser.add_argument("--data", type=Path, default=DATA, help="file for the scores as JSON")
    options = parser.parse_args(arguments)
    try:
        runs = read_runs(options.runs)
        rows, swept = measurements(runs), sweep_plans(runs)
        validation = validate(rows, swept)
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
    results = [
        cross_validate(table, folds, always, start)
        for folds in (group_folds(table.groups), source_folds(table.sources))
    ]
    prior = learn_prior(table, results)
    by_group, by_source = (correct(table, result, prior) for result in results)
    outcome, left_out = with_intervals(table, by_group, by_source)
    headline, moe = table.headline, np.array([row.scenario.model.is_moe for row in rows])
    names = np.array(table.sources)
    small = names == SMALL_MODEL_SOURCE
    overall = {
        "all": headline,
        "dense": headline & ~moe,
        "mixture of experts": headline & moe,
        "very small models, apart": small,
        "low confidence, apart": ~headline & ~small,
    }
    parts: dict[ScoreGrouping, dict[str, Mask]] = {
        "device": _masks([row.scenario.cluster.device for row in rows]),
        "framework": _masks([row.scenario.training.framework for row in rows], headline),
        "kind of model": _masks([_model_kind(row) for row in rows], headline),
        "fabric": _masks([row.scenario.cluster.fabric or "not stated" for row in rows], headline),
    }
    first = "Whole sources left out in turn, mean over sources"
    sections: list[tuple[str, ScoreGrouping, Outcome, dict[str, Mask]]] = [
        ("Whole sources left out in turn, every row alike", "rows", left_out, overall),
        ("By source, each left out whole", "source", left_out, _masks(table.sources)),
        *((f"By {part}, whole sources left out", part, left_out, masks) for part, masks in parts.items()),
        ("Groups left out in turn", "rows", outcome, overall),
        *((f"By {part}, groups left out", part, outcome, masks) for part, masks in parts.items()),
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
            *(_sweep_scores(table, tabulate(measured), measured, swept, prior) if measured else ()),
        ),
        memory=_memory_scores(rows, swept),
        points=tuple(
            Point(measured_s=float(m), predicted_s=float(p), kind=kind)
            for m, p, kind in zip(table.measured_s, by_source.predicted_s, kinds, strict=True)
        ),
    )


def with_intervals(table: Table, *results: Corrected) -> list[Outcome]:
    """Of groups and of sources left out. A source's intervals are learned from the other sources' errors."""
    by_group, by_source = results
    sources, ends = np.array(table.sources), np.zeros((len(results), 2, len(table.sources)))
    for source in np.unique(sources):
        test, others = np.flatnonzero(sources == source), np.flatnonzero(sources != source)
        model = learn_intervals(table, by_group, by_source, others)
        for end, result in zip(ends, results, strict=True):
            end[:, test] = _ends(model, table, result, test)
    return [
        Outcome(table.measured_s, result.predicted_s, low, high)
        for result, (low, high) in zip(results, ends, strict=True)
    ]


def _ends(model: IntervalModel, table: Table, result: Corrected, rows: Indices) -> tuple[Array, Array]:
    part, nothing = table.take(rows), np.zeros(len(rows))
    correction = Correction(nothing, result.distance[rows])
    return interval(model, part.inputs, part.keys, result.terms.take(rows), correction)


NEAR_BEST = 1.5
"""Plans that take at most so many times as long as the best of their workload: what a user would look at."""


def _sweep_scores(
    table: Table,
    sweep: Table,
    measured: Sequence[Measurement],
    swept: Sequence[SweptPlan],
    prior: ResidualPrior,
) -> Iterator[Score]:
    """The sweep predicted by a fit without it, and with its other workloads in it."""
    workload_of = {p.measurement.id: p.workload for p in swept if p.measurement}
    workloads = np.array([workload_of[row.id] for row in measured])
    near = np.zeros(len(measured), dtype=bool)
    for name in np.unique(workloads):
        inside = workloads == name
        near |= inside & (sweep.measured_s <= NEAR_BEST * sweep.measured_s[inside].min())
    without, everything = fit(table), np.arange(len(measured))
    alone_s = step_terms(table.inputs, resolve(table.keys, without.shifts)).total
    residual = build_residual(table, [""] * len(table.sources), alone_s, prior)
    correction = residual.correct(sweep.inputs, sweep.keys)
    folds = [np.flatnonzero(workloads == name) for name in np.unique(workloads)]
    section = "The sweep, plans near the best of their workload"
    for name, terms in (
        ("left out whole", step_terms(sweep.inputs, resolve(sweep.keys, without.shifts))),
        ("its workloads left out in turn", cross_validate(sweep, folds, table, without.shifts).terms),
    ):
        terms = terms.broadcast(len(measured)) * np.exp(correction.log_factor)
        result = Corrected(terms.total, terms, correction.distance)
        low, high = _ends(shipped_calibration().intervals, sweep, result, everything)
        yield score(Outcome(sweep.measured_s, terms.total, low, high), near, section, "rows", name)


def _masks(labels: Sequence[str], among: Mask | None = None) -> dict[str, Mask]:
    names = np.array(labels)
    return {str(name): (names == name) & (True if among is None else among) for name in np.unique(names)}


def _model_kind(row: Measurement) -> str:
    model = row.scenario.model
    if model.num_mixer_layers:
        return "hybrid (Mamba and attention)"
    return "mixture of experts" if model.is_moe else "dense"


def _kinds(rows: Sequence[Measurement], table: Table) -> list[RunKind]:
    return [
        "small" if source == SMALL_MODEL_SOURCE else "moe" if row.scenario.model.is_moe else "dense"
        for row, source in zip(rows, table.sources, strict=True)
    ]


def _memory_scores(rows: Sequence[Measurement], swept: Sequence[SweptPlan]) -> tuple[MemoryScore, ...]:
    """Of published runs by source, and of the sweep's plans that ran and that crashed."""
    with_peak = sorted({row.source for row in rows if row.peak is not None})
    scores = [memory_score("published runs", rows)]
    scores += [memory_score(source, [row for row in rows if row.source == source]) for source in with_peak]
    ran = [plan.measurement for plan in swept if plan.measurement]
    crashed = [plan.scenario for plan in swept if plan.measurement is None]
    if ran and crashed:
        scores.append(memory_score("plans of sweeps that ran", ran))
        share = _fits_share(crashed)
        scores.append(MemoryScore(name="plans of sweeps that crashed", rows=0, mape=0.0, fits_share=share))
    return tuple(scores)


def _fits_share(scenarios: Sequence[Scenario]) -> float:
    return float(np.mean([prediction.fits for prediction in predict(scenarios)]))


if __name__ == "__main__":
    raise SystemExit(main())
