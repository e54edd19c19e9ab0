"""Groups stay together, every row is predicted once by a fit that has not seen it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.fit import OutOfFold, cross_validate, group_folds, learn_intervals, main, source_folds, tabulate
from research.published import read_measurements
from tools.cost.constants import resolve
from tools.cost.encode import encode
from tools.cost.step import step_breakdown
from tools.errors import InputError
from tools.scenario import Scenario

Write = Callable[[list[float]], Path]


def times(scenarios: list[Scenario]) -> list[float]:
    x, keys = encode(scenarios)
    found: list[float] = step_breakdown(x, resolve(keys, {})).total.tolist()
    return found


@given(groups=st.lists(st.sampled_from("abcdefghijklmnopq"), min_size=1, max_size=60))
def test_folds_cover_every_row_once_and_never_split_a_group(groups: list[str]) -> None:
    folds = group_folds(groups)
    assert sorted(int(row) for fold in folds for row in fold) == list(range(len(groups)))
    for name in set(groups):
        holders = [n for n, fold in enumerate(folds) if any(groups[int(row)] == name for row in fold)]
        assert len(holders) == 1


def test_the_folds_are_the_same_in_every_run() -> None:
    groups = [f"g{n % 23}" for n in range(100)]
    for fold, other in zip(group_folds(groups), group_folds(groups), strict=True):
        assert fold.tolist() == other.tolist()


def test_a_source_fold_is_one_whole_source() -> None:
    sources = ["a", "b", "a", "c", "b"]
    assert [fold.tolist() for fold in source_folds(sources)] == [[0, 2], [1, 4], [3]]


def test_a_fold_is_predicted_without_its_own_measurements(
    scenarios: list[Scenario], write_measurements: Write
) -> None:
    """Absurd measurements of the left-out rows must not show in their predictions."""
    right = times(scenarios)
    test = np.arange(0, len(right), 8)
    wrong = [seconds * 50.0 if n in set(test.tolist()) else seconds for n, seconds in enumerate(right)]
    predictions = [
        cross_validate(tabulate(read_measurements(write_measurements(measured))), [test]).predicted_s[test]
        for measured in (right, wrong)
    ]
    np.testing.assert_array_equal(predictions[0], predictions[1])


def test_a_stack_left_out_whole_is_new_to_the_fit(
    scenarios: list[Scenario], write_measurements: Write
) -> None:
    table = tabulate(read_measurements(write_measurements(times(scenarios))))
    hopper_titan = np.array(
        [
            n
            for n in range(len(scenarios))
            if table.keys.framework[n] == "torchtitan" and table.keys.generation[n] == "hopper"
        ]
    )
    titan = np.flatnonzero(np.array(table.keys.framework) == "torchtitan")
    assert set(cross_validate(table, [hopper_titan]).novelties[hopper_titan].tolist()) == {1}
    assert set(cross_validate(table, [titan]).novelties[titan].tolist()) == {2}


def test_measurements_are_read_with_their_source_group_and_memory(
    scenarios: list[Scenario], write_measurements: Write
) -> None:
    rows = read_measurements(write_measurements(times(scenarios)))
    assert len(rows) == len(scenarios)
    assert (rows[5].id, rows[5].source, rows[5].group) == ("run-5", "source-1", "group-5")
    assert rows[5].peak_memory_gib == 40.0
    assert rows[4].peak_memory_gib is None
    assert rows[5].scenario == scenarios[5]


def test_a_missing_file_is_the_user_s_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError):
        read_measurements(tmp_path / "absent.jsonl")
    assert (
        main(
            [
                "--measurements",
                str(tmp_path / "absent.jsonl"),
                "--sweeps",
                "absent",
                "--output",
                str(tmp_path / "x"),
            ]
        )
        == 2
    )
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b"\xff",
        b'{"measured": 3, "source": {}}',
        b'{"measured": {"step_time_s": 0}, "source": {"key": "a"}}',
        b'{"measured": {"step_time_s": 1}, "source": {"key": "a"}, "id": 1, "group": "g", "scenario": {}}',
    ],
)
def test_a_broken_row_is_reported_in_one_line(
    text: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(text)
    assert main(["--measurements", str(path), "--sweeps", "absent", "--output", str(tmp_path / "x")]) == 2
    told = capsys.readouterr().err
    assert told.startswith("fit: error: measurements")
    assert told.count("\n") == 1


def test_intervals_are_learned_from_the_rows_that_may_teach(
    scenarios: list[Scenario], write_measurements: Write
) -> None:
    table = tabulate(read_measurements(write_measurements(times(scenarios))))
    count = len(scenarios)
    off = np.where(np.arange(count) < count // 2, 1.02, 1.5)
    result = OutOfFold(table.measured_s * off, np.zeros(count, np.int64), np.zeros(count, np.int64))
    exact = learn_intervals(table, result, result, np.arange(count // 2))
    everything = learn_intervals(table, result, result)
    assert exact.usual_error["dense"] == pytest.approx(np.log(1.02))
    assert everything.usual_error["dense"] == pytest.approx((np.log(1.02) + np.log(1.5)) / 2)


def test_whole_sources_left_out_teach_how_far_a_new_source_may_lie(
    scenarios: list[Scenario], write_measurements: Write
) -> None:
    """Groups left out, whose source the fit has seen, teach the error of ratios only."""
    table = tabulate(read_measurements(write_measurements(times(scenarios))))
    count = len(scenarios)
    seen, new = np.zeros(count, np.int64), np.full(count, 2, np.int64)
    by_group = OutOfFold(table.measured_s * 1.02, seen, seen)
    model = learn_intervals(table, by_group, OutOfFold(table.measured_s * 1.5, new, seen))
    assert model.usual_error["dense"] == pytest.approx(np.log(1.5))
    assert model.pair_error["dense"] == pytest.approx(0.0, abs=1e-9)
    assert model.quantiles["2"][1] > model.quantiles["0"][1] or model.quantiles["2"][0] < -0.5
