"""`make validate`: predict each published run by a fit that has not seen it; write docs/validation.md."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from tools.cost.coefficients import resolve
from tools.cost.evaluate import evaluate
from tools.cost.inputs import Array
from tools.cost.intervals import interval
from tools.cost.memory import GIB
from tools.cost.memory_settings import memory_settings
from tools.errors import AsapError
from tools.fit.crossvalidate import (
    OutOfFold,
    Table,
    cross_validate,
    group_folds,
    source_folds,
    tabulate,
    take_keys,
)
from tools.fit.main import MEASUREMENTS, REPO, learn_intervals
from tools.fit.measurements import Measurement, read_measurements
from tools.validate.plot import scatter_svg
from tools.validate.score import MemoryScore, Outcome, Score, memory_score, score
from tools.validate.tables import report, score_table

PLOT = "validation.svg"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make validate", description=__doc__)
    parser.add_argument("--measurements", type=Path, default=MEASUREMENTS, help="JSONL file of measured runs")
    parser.add_argument(
        "--output", type=Path, default=REPO / "docs", help="folder for validation.md and its plot"
    )
    given = parser.parse_args(arguments)
    try:
        rows = read_measurements(given.measurements)
        given.output.mkdir(parents=True, exist_ok=True)
        text = validate(rows, given.output)
    except AsapError as error:
        print(f"validate: error: {error}", file=sys.stderr)
        return 2
    (given.output / "validation.md").write_text(text)
    print(text)
    return 0


def validate(rows: Sequence[Measurement], output: Path) -> str:
    table = tabulate(rows)
    by_group = cross_validate(table, group_folds(table.groups))
    by_source = cross_validate(table, source_folds(table.sources))
    outcome = with_intervals(table, by_group, by_group, by_source)
    left_out = with_intervals(table, by_source, by_group, by_source)
    (output / PLOT).write_text(scatter_svg(table.measured_s, by_group.predicted_s, _kinds(rows, table)))
    headline, moe = table.headline, np.array([row.scenario.model.is_moe for row in rows])
    overall = {
        "all": score(outcome, headline),
        "dense": score(outcome, headline & ~moe),
        "mixture of experts": score(outcome, headline & moe),
        "very small models, apart": score(outcome, ~headline),
    }
    whole_source = {"all, whole source left out": score(left_out, headline)}
    sections = [
        ("Groups left out in turn", score_table("rows", overall)),
        ("By source", score_table("source", _by(outcome, lambda row: row.source, rows))),
        ("By device", score_table("device", _by(outcome, lambda row: row.scenario.cluster.device, rows))),
        ("Whole sources left out in turn", score_table("rows", whole_source)),
        (
            "By source, each left out whole",
            score_table("source", _by(left_out, lambda row: row.source, rows)),
        ),
    ]
    return report(sections, {"all": _memory(rows, table)}, PLOT)


def with_intervals(table: Table, result: OutOfFold, by_group: OutOfFold, by_source: OutOfFold) -> Outcome:
    """Intervals of a fold are learned from the other folds' residuals (cross-conformal)."""
    low, high = np.zeros(len(table.sources)), np.zeros(len(table.sources))
    for fold in np.unique(result.fold_of):
        test, others = np.flatnonzero(result.fold_of == fold), np.flatnonzero(result.fold_of != fold)
        model = learn_intervals(table, by_group, by_source, others)
        keys = take_keys(table.keys, test)
        low[test], high[test] = interval(model, table.inputs.take(test), keys, result.predicted_s[test])
    return Outcome(table.measured_s, result.predicted_s, low, high)


def _by(outcome: Outcome, key: Callable[[Measurement], str], rows: Sequence[Measurement]) -> dict[str, Score]:
    names = np.array([key(row) for row in rows])
    return {str(name): score(outcome, names == name) for name in np.unique(names)}


def _kinds(rows: Sequence[Measurement], table: Table) -> list[str]:
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
