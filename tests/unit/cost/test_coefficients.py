"""The fitted constants: bounded, shifted by level, falling back where nothing is known."""

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.cost.calibration import shipped_calibration
from tools.cost.constants import LEVELS, Coefficients, RowKeys, definitions, resolve

NAMES = [d.name for d in definitions()]
HOPPER = RowKeys(["hopper"], ["h100-sxm-80gb"], ["nanotron"])


def test_there_is_one_definition_for_each_constant() -> None:
    assert sorted(NAMES) == sorted(f.name for f in fields(Coefficients))


@pytest.mark.parametrize("name", NAMES)
def test_a_definition_has_its_prior_in_bounds_a_source_and_known_levels(name: str) -> None:
    d = next(d for d in definitions() if d.name == name)
    assert 0 < d.low <= d.prior <= d.high
    assert d.meaning
    assert d.source
    assert set(d.spread) <= set(LEVELS)
    assert all(0 < spread <= 1 for spread in d.spread.values())
    assert {key.split(":")[0] for key in d.prior_factors} <= set(LEVELS)


@given(
    shift=st.floats(-50, 50), level=st.sampled_from(["everywhere", "generation", "framework"]), data=st.data()
)
def test_no_shift_leaves_the_bounds(shift: float, level: str, data: st.DataObject) -> None:
    d = data.draw(st.sampled_from(definitions()))
    key = {"everywhere": "all", "generation": "hopper", "framework": "nanotron"}[level]
    value = float(getattr(resolve(HOPPER, {d.name: {level: {key: shift}}}), d.name))
    assert d.low <= value <= d.high


def test_shifts_of_all_levels_multiply() -> None:
    shifts = {"dp_exposed": {"everywhere": {"all": 0.1}, "framework": {"nanotron": 0.2, "maxtext": -5.0}}}
    plain, shifted = (float(resolve(HOPPER, s).dp_exposed) for s in ({}, shifts))
    assert shifted / plain == pytest.approx(2.718281828459045**0.3)


def test_an_unknown_framework_and_device_fall_back_to_what_holds_everywhere() -> None:
    shifts = shipped_calibration().shifts
    unknown = resolve(RowKeys(["nova"], ["nova-1"], ["a-new-stack"]), shifts)
    everywhere = {name: {"everywhere": levels["everywhere"]} for name, levels in shifts.items()}
    assert unknown == resolve(RowKeys(["nova"], ["nova-1"], ["a-new-stack"]), everywhere)


def test_the_shipped_shifts_name_known_constants_and_levels() -> None:
    by_name = {d.name: d for d in definitions()}
    for name, levels in shipped_calibration().shifts.items():
        assert set(levels) <= set(by_name[name].spread)


def test_the_shipped_shifts_stay_within_four_spreads_of_their_priors() -> None:
    by_name = {d.name: d for d in definitions()}
    for name, levels in shipped_calibration().shifts.items():
        for level, keys in levels.items():
            for key, shift in keys.items():
                assert abs(shift) <= 4 * by_name[name].spread[level], (name, level, key)


def test_one_row_gives_scalars_and_many_rows_arrays() -> None:
    two = RowKeys(["hopper", "ampere"], ["h100-sxm-80gb", "a100-sxm-80gb"], ["other", "other"])
    assert resolve(HOPPER, {}).size == 1
    assert resolve(two, {}).gemm_efficiency.shape == (2,)
