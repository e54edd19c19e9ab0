"""Groups stay together, every row is predicted once by a fit that has not seen it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from research.errors import correct
from research.fit import cross_validate, group_folds, tabulate
from research.published import Measurement, measurements, read_runs
from tools.model.constants import resolve
from tools.model.residual import shipped_residual
from tools.physics.encode import encode
from tools.physics.step import step_terms
from tools.scenario import Scenario

Write = Callable[[list[float]], Path]
PRIOR = shipped_residual().prior


def read(path: Path) -> list[Measurement]:
    return measurements(read_runs(path))


def times(scenarios: list[Scenario]) -> list[float]:
    x, keys = encode(scenarios)
    found: list[float] = step_terms(x, resolve(keys, {})).total.tolist()
    return found


@given(groups=st.lists(st.sampled_from("abcdefghijklmnopq"), min_size=1, max_size=60))
def test_folds_cover_every_row_once_and_never_split_a_group(groups: list[str]) -> None:
    folds = group_folds(groups)
    assert sorted(int(row) for fold in folds for row in fold) == list(range(len(groups)))
    for name in set(groups):
        holders = [n for n, fold in enumerate(folds) if any(groups[int(row)] == name for row in fold)]
        assert len(holders) == 1


def test_a_fold_is_predicted_without_its_own_measurements(
    scenarios: list[Scenario], write_measurements: Write
) -> None:
    """Absurd measurements of the left-out rows must not show in their predictions."""
    right = times(scenarios)
    test = np.arange(0, len(right), 8)
    wrong = [seconds * 50.0 if n in set(test.tolist()) else seconds for n, seconds in enumerate(right)]
    predictions = [
        cross_validate(tabulate(read(write_measurements(measured))), [test]).predicted_s[test]
        for measured in (right, wrong)
    ]
    np.testing.assert_array_equal(predictions[0], predictions[1])


def test_a_left_out_row_is_corrected_by_the_other_folds_alone(
    scenarios: list[Scenario], write_measurements: Write
) -> None:
    """All are 20% slower than the formulas; the left-out rows' own, absurd figures do not count."""
    slow = [seconds * 1.2 for seconds in times(scenarios)]
    test = np.arange(0, len(slow), 8)
    wrong = [seconds * 1.5 if n in set(test.tolist()) else seconds for n, seconds in enumerate(slow)]
    predicted = []
    for measured in (slow, wrong):
        table = tabulate(read(write_measurements(measured)))
        folds = [test, np.setdiff1d(np.arange(len(slow)), test)]
        result = cross_validate(table, folds)
        corrected = correct(table, result, PRIOR)
        predicted.append(corrected.predicted_s[test])
        before, after = (
            np.abs(np.log(s[test] / np.array(slow)[test]))
            for s in (result.predicted_s, corrected.predicted_s)
        )
        assert after.mean() <= before.mean()
    np.testing.assert_array_equal(predicted[0], predicted[1])
