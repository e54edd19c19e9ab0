"""A finished job's result as a measurement: its interval, its noise, and what is no measurement."""

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from tools.trials.measure import (
    Measurement,
    MeasurementError,
    median_interval,
    paired_ratio,
    pooled,
    read_measurement,
)

RESULT: dict[str, Any] = {
    "step_times_s": [1.0, 1.2, 1.1, 1.0, 1.3],
    "losses": [5.0, 4.0],
    "fingerprint": {"model": "m"},
    "peak_memory_bytes": [100, 200],
    "nodes": ["n1"],
}


def write(folder: Path, **changed: object) -> Path:
    content = {name: part for name, part in {**RESULT, **changed}.items() if part is not None}
    (folder / "result.json").write_text(json.dumps(content))
    return folder


def test_a_result_needs_only_times_losses_and_a_fingerprint(tmp_path: Path) -> None:
    whole = read_measurement(write(tmp_path))
    assert (whole.step_time_s, whole.losses) == (1.1, (5.0, 4.0))
    assert (whole.peak_memory_bytes, whole.nodes) == (200, ("n1",))
    least = read_measurement(write(tmp_path, peak_memory_bytes=None, nodes=None))
    assert (least.peak_memory_bytes, least.nodes) == (None, ())
    assert read_measurement(write(tmp_path, nodes=[0, "n1"])).nodes == ("0", "n1")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("step_times_s", value) for value in ([], [0.0], [1.0, "fast"], [True], [math.nan], [10**400])),
        ("losses", [math.inf]),
        ("losses", None),
        *(("fingerprint", value) for value in ({}, "same", {"a": math.nan}, {"a": 10**400})),
        ("nodes", 5),
    ],
)
def test_what_is_not_a_measurement_names_the_entry(tmp_path: Path, name: str, value: object) -> None:
    with pytest.raises(MeasurementError, match=name):
        read_measurement(write(tmp_path, **{name: value}))


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    write(tmp_path / "elsewhere")
    (tmp_path / "result.json").symlink_to(tmp_path / "elsewhere" / "result.json")
    with pytest.raises(MeasurementError, match="left no"):
        read_measurement(tmp_path)


def test_the_interval_is_that_of_the_sign_tests_tables() -> None:
    """Ranks 2 and 9 of 10 hold the median with 97.9%, 6 and 15 of 20 with 95.9%; few steps have less."""
    assert median_interval(range(1, 11)) == pytest.approx((2, 9, 0.97852), abs=1e-5)
    assert median_interval(range(1, 21)) == pytest.approx((6, 15, 0.95861), abs=1e-5)
    assert median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0, 0.75)
    assert median_interval([1.0]) == (1.0, 1.0, 0.0)


def test_the_interval_covers_the_true_median_as_often_as_it_says() -> None:
    chance, hits = random.Random(3), 0
    for _ in range(2000):
        low, high, held = median_interval([chance.lognormvariate(0.0, 0.3) for _ in range(20)])
        hits += low <= 1.0 <= high
    assert hits / 2000 == pytest.approx(held, abs=0.02)


def test_a_run_on_other_nodes_is_not_a_repeat_of_the_first() -> None:
    here = Measurement((1.0,) * 20, (3.0,), {"nodes": "a"}, run_medians_s=(1.0,))
    there = Measurement((9.0,) * 20, (3.0,), {"nodes": "b"}, run_medians_s=(9.0,))
    assert pooled([here, there, here]) == pooled([here, here])


def test_a_ratio_of_pairs_is_as_uncertain_as_they_scatter() -> None:
    def pair(ratio: float, load: float) -> tuple[Measurement, Measurement]:
        own, other = ([scale * load * step for step in (0.99, 1.0, 1.0, 1.01)] for scale in (ratio, 1.0))
        return Measurement(tuple(own), (), {}), Measurement(tuple(other), (), {})

    alike = paired_ratio("t0", [pair(0.8, 1.0), pair(0.8, 5.0)])
    assert alike.ratio == pytest.approx(0.8)
    assert 0.78 < alike.low < alike.ratio < alike.high < 0.82
    apart = paired_ratio("t0", [pair(0.6, 1.0), pair(0.8 * 0.8 / 0.6, 1.0)])
    assert apart.ratio == pytest.approx(0.8)
    assert apart.high > 1 > alike.high
