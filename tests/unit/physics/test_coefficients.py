"""The fitted constants: bounded, shifted by level, falling back where nothing is known."""

import pytest

from tools.model.calibration import shipped_calibration
from tools.model.constants import LEVELS, constant_priors, resolve
from tools.physics.inputs import RowKeys

NAMES = [d.name for d in constant_priors()]
HOPPER = RowKeys(["hopper"], ["h100-sxm-80gb"], ["nanotron"])


@pytest.mark.parametrize("name", NAMES)
def test_a_definition_has_its_prior_in_bounds_a_source_and_known_levels(name: str) -> None:
    d = next(d for d in constant_priors() if d.name == name)
    assert 0 < d.low <= d.prior <= d.high
    assert d.meaning
    assert d.source
    assert set(d.spread) <= set(LEVELS)
    assert all(0 < spread <= 1 for spread in d.spread.values())
    assert {key.split(":")[0] for key in d.prior_factors} <= set(LEVELS)


def test_shifts_of_all_levels_multiply() -> None:
    shifts = {"dp_exposed": {"everywhere": {"all": 0.1}, "framework": {"nanotron": 0.2, "maxtext": -5.0}}}
    plain, shifted = (float(resolve(HOPPER, s).dp_exposed) for s in ({}, shifts))
    assert shifted / plain == pytest.approx(2.718281828459045**0.3)


def test_an_unknown_framework_and_device_fall_back_to_what_holds_everywhere() -> None:
    shifts = shipped_calibration().shifts
    unknown = resolve(RowKeys(["nova"], ["nova-1"], ["a-new-stack"]), shifts)
    everywhere = {name: {"everywhere": levels["everywhere"]} for name, levels in shifts.items()}
    assert unknown == resolve(RowKeys(["nova"], ["nova-1"], ["a-new-stack"]), everywhere)


def test_the_shipped_shifts_stay_within_four_spreads_of_their_priors() -> None:
    by_name = {d.name: d for d in constant_priors()}
    for name, levels in shipped_calibration().shifts.items():
        for level, keys in levels.items():
            for key, shift in keys.items():
                assert abs(shift) <= 4 * by_name[name].spread[level], (name, level, key)
