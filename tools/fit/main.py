"""`make fit`: learn the constants and the intervals from published measurements and write fitted.json.

The measurements are not part of the repo; by default they are read from the folder that lies beside it.
"""

import argparse
import datetime
import json
import sys
from pathlib import Path

import numpy as np

from tools.cost.inputs import Array
from tools.cost.intervals import IntervalModel, Residuals, learn
from tools.errors import AsapError
from tools.fit.calibrate import fit
from tools.fit.crossvalidate import (
    Indices,
    OutOfFold,
    Table,
    cross_validate,
    group_folds,
    source_folds,
    tabulate,
    take_keys,
)
from tools.fit.measurements import read_measurements

REPO = Path(__file__).resolve().parents[2]
MEASUREMENTS = REPO.parent / "shared" / "groundtruth" / "dev.jsonl"
FITTED = REPO / "kb_seed" / "calibration" / "fitted.json"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make fit", description=__doc__)
    parser.add_argument("--measurements", type=Path, default=MEASUREMENTS, help="JSONL file of measured runs")
    parser.add_argument("--output", type=Path, default=FITTED, help="where to write the fitted values")
    given = parser.parse_args(arguments)
    try:
        write_fit(given.measurements, given.output)
    except AsapError as error:
        print(f"fit: error: {error}", file=sys.stderr)
        return 2
    return 0


def write_fit(measurements: Path, output: Path) -> None:
    table = tabulate(read_measurements(measurements))
    by_group = cross_validate(table, group_folds(table.groups))
    by_source = cross_validate(table, source_folds(table.sources))
    shifts = fit(table.inputs, table.keys, table.measured_s, table.weights)
    data = {
        "fitted_on": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "rows": len(table.sources),
        "error": {"grouped": _error(table, by_group), "source_left_out": _error(table, by_source)},
        "intervals": learn_intervals(table, by_group, by_source).to_data(),
        "shifts": shifts,
    }
    output.write_text(json.dumps(data, indent=1) + "\n")
    print(json.dumps(data["error"]))


def learn_intervals(
    table: Table, by_group: OutOfFold, by_source: OutOfFold, rows: Indices | None = None
) -> IntervalModel:
    """What groups left out teach about measured stacks, and whole sources about unmeasured ones; `rows`
    restricts who teaches."""
    chosen = np.arange(len(table.sources)) if rows is None else rows
    new = chosen[by_source.novelties[chosen] > 0]
    stacked = np.concatenate([chosen, new])
    predicted = np.concatenate([by_group.predicted_s[chosen], by_source.predicted_s[new]])
    residuals = Residuals(
        values=np.log(predicted / table.measured_s[stacked]),
        novelties=np.concatenate([by_group.novelties[chosen], by_source.novelties[new]]),
        headline=table.headline[stacked],
        # pairs are compared where their group was left out: a whole source left out would only add its bias
        groups=[table.groups[row] for row in chosen] + [""] * len(new),
    )
    return learn(table.inputs.take(stacked), take_keys(table.keys, stacked), residuals)


def _error(table: Table, result: OutOfFold) -> dict[str, float]:
    rows = table.headline
    ratio: Array = np.abs(result.predicted_s[rows] / table.measured_s[rows] - 1.0)
    return {"mape": round(float(ratio.mean()), 4), "median": round(float(np.median(ratio)), 4)}


if __name__ == "__main__":
    raise SystemExit(main())
