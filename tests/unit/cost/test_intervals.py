"""80% intervals: they hold four of five, weigh every source the same, and widen where little is known."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.cost.scenes import Scene, number, scene
from tools.cost.calibration import (
    Calibration,
    IntervalModel,
    Residuals,
    interval,
    known_of,
    learn,
    novelty,
    shipped_calibration,
)
from tools.cost.constants import RowKeys
from tools.cost.inputs import Array, Inputs

ROWS = 2000


def stacks(framework: str, generation: str, count: int) -> RowKeys:
    return RowKeys([generation] * count, [f"{generation}-1"] * count, [framework] * count)


def joined(*keys: RowKeys) -> RowKeys:
    columns = ("generation", "device", "framework")
    return RowKeys(*([name for k in keys for name in getattr(k, column)] for column in columns))


def width(model: IntervalModel, s: Scene, keys: RowKeys | None = None) -> float:
    low, high = interval(model, s.x, keys or s.keys, np.array([1.0]))
    return float(np.log(high / low)[0])


def rows_of(s: Scene, count: int) -> Inputs:
    return replace(s.x, moe_layers=np.zeros(count))


def learn_from(
    keys: RowKeys, values: Array, novelties: Sequence[int], sources: Sequence[str] | None = None
) -> IntervalModel:
    count = len(values)
    groups = [f"group-{n // 4}" for n in range(count)]
    origin = list(sources or [f"source-{n % 10}" for n in range(count)])
    everything = np.ones(count, dtype=np.bool_)
    residuals = Residuals(values, np.asarray(novelties), everything, origin, values, groups)
    return learn(rows_of(scene(), count), keys, residuals, known_of(keys, origin))


@pytest.fixture(scope="module")
def learned() -> IntervalModel:
    """A stack that is 10% off, and rows whose framework was left out."""
    rng = np.random.default_rng(0)
    keys = joined(*(stacks(name, "hopper", ROWS) for name in ("known", "left-out")))
    residuals = rng.normal(0.0, 1.0, 2 * ROWS) * np.repeat([0.1, 0.5], ROWS)
    return learn_from(keys, residuals, np.repeat([0, 2], ROWS).tolist())


def test_the_interval_holds_four_of_five_fresh_runs_of_a_measured_stack(learned: IntervalModel) -> None:
    measured = np.exp(-np.random.default_rng(1).normal(0.0, 0.1, ROWS))
    low, high = interval(learned, rows_of(scene(), ROWS), stacks("known", "hopper", ROWS), np.ones(ROWS))
    assert 0.75 < ((low <= measured) & (measured <= high)).mean() < 0.85


def test_every_source_weighs_the_same_however_many_rows_it_has() -> None:
    """Ninety rows of one exact source and ten sources of one rough row each."""
    rng = np.random.default_rng(5)
    values = np.concatenate([rng.normal(0.0, 0.01, 90), np.linspace(-0.3, 0.3, 10)])
    sources = ["large"] * 90 + [f"small-{n}" for n in range(10)]
    model = learn_from(stacks("mixed", "hopper", 100), values, [0] * 100, sources)
    assert width(model, scene(), stacks("mixed", "hopper", 1)) > 0.4


def test_a_framework_never_measured_gets_the_error_of_those_left_out(learned: IntervalModel) -> None:
    known, unknown = (width(learned, scene(), stacks(name, "hopper", 1)) for name in ("known", "new"))
    assert unknown > 2 * known


def test_a_biased_model_gets_an_interval_that_leans_the_other_way() -> None:
    """Predictions that were 10% to 30% too high: the measurement is expected below the prediction."""
    rng = np.random.default_rng(2)
    keys = stacks("slow", "hopper", ROWS)
    model = learn_from(keys, rng.uniform(0.1, 0.3, ROWS), [0] * ROWS)
    low, high = interval(model, scene().x, stacks("slow", "hopper", 1), np.array([1.0]))
    assert np.log(1.0 / low[0]) > 2 * np.log(high[0] / 1.0)
    assert low[0] < 1.0 < high[0]


def test_few_residuals_give_a_wide_interval_rather_than_none() -> None:
    keys = stacks("rare", "hopper", 3)
    model = learn_from(keys, np.array([0.1, -0.1, 0.1]), [0, 0, 0])
    assert width(model, scene(), stacks("rare", "hopper", 1)) >= 0.4


@pytest.mark.parametrize(
    ("keys", "level"),
    [
        (RowKeys(["hopper"], ["h200"], ["titan"]), 0),
        (RowKeys(["ampere"], ["a100"], ["mega"]), 1),
        (RowKeys(["ampere"], ["a100"], ["titan"]), 1),
        (RowKeys(["hopper"], ["h100"], ["new"]), 2),
        (RowKeys(["nova"], ["n1"], ["titan"]), 2),
    ],
)
def test_a_stack_is_known_if_two_sources_measured_it(keys: RowKeys, level: int) -> None:
    measured = RowKeys(["hopper", "hopper", "ampere"], ["h100", "h100", "a100"], ["titan", "titan", "mega"])
    known = known_of(measured, ["one", "two", "one"])
    assert novelty(keys, 0, known) == level


def test_an_unmeasured_framework_is_less_certain_than_the_measured_ones_of_the_example() -> None:
    model = shipped_calibration().intervals
    measured = width(model, scene(tp=8, zero_stage=3))
    unmeasured = width(model, scene(tp=8, framework="torch-fsdp2", zero_stage=3))
    assert unmeasured > measured


def test_mixtures_of_experts_are_less_certain_than_dense_models() -> None:
    model = shipped_calibration().intervals
    assert width(model, scene("mixtral-8x7b", ep=8)) > width(model, scene("llama-3.1-8b"))


@given(factor=st.floats(1.0, 1000.0))
def test_the_farther_from_anything_measured_the_wider(factor: float) -> None:
    model, s = shipped_calibration().intervals, scene()
    beyond = model.ranges["seq"][1] * factor
    here, far, farther = (
        width(model, replace(s, x=replace(s.x, seq=number(seq)))) for seq in (4096, beyond, beyond * 2)
    )
    assert here <= far < farther


def test_below_the_measured_range_is_far_too() -> None:
    model, s = shipped_calibration().intervals, scene()
    tiny = replace(s, x=replace(s.x, hidden=number(64.0)))
    assert width(model, tiny) > width(model, s)


def test_the_intervals_survive_being_written_and_read(
    learned: IntervalModel,
) -> None:
    again = Calibration.from_data(replace(shipped_calibration(), intervals=learned).to_data()).intervals
    assert again == learned
    assert width(again, scene()) == width(learned, scene())


def test_the_ratio_of_two_plans_of_one_group_is_surer_than_either() -> None:
    """All of a group is off by the same factor, and a little by itself."""
    rng = np.random.default_rng(4)
    values = np.repeat(rng.normal(0.0, 0.3, ROWS // 4), 4) + rng.normal(0.0, 0.01, ROWS)
    model = learn_from(stacks("exact", "hopper", ROWS), values, [0] * ROWS)
    assert model.usual_error["dense"] > 0.2
    assert model.pair_error["dense"] == pytest.approx(1.2816 * 0.01 * 2**0.5, rel=0.1)


@pytest.mark.parametrize("kind", [0, 1])
def test_the_newer_the_wider_in_the_shipped_intervals(kind: int) -> None:
    levels = [abs(shipped_calibration().intervals.quantiles[str(level)][kind]) for level in range(3)]
    assert levels == sorted(levels)
    assert levels[0] < levels[2]
