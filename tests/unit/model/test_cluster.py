"""The cost model fitted to one cluster: what was measured is taken, and nothing else moves."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.errors import InputError
from tools.model.calibration import (
    calibrated_to,
    parse_cluster_calibration,
    shipped_calibration,
)
from tools.model.constants import ConstantPrior, constant_priors, resolve
from tools.physics.inputs import RowKeys

KEYS = RowKeys(["hopper"], ["h100-sxm-80gb"], ["torchtitan"])
GOOD: dict[str, Any] = {
    "format": "asap-cluster-calibration-1",
    "framework": "torchtitan",
    "generation": "hopper",
    "device": "h100-sxm-80gb",
    "coefficients": {"gemm_efficiency": 0.6, "dp_exposed": 0.5},
}


def value_of(name: str, keys: RowKeys, measured: dict[str, float]) -> float:
    shifts = calibrated_to(shipped_calibration(), KEYS, measured).shifts
    return float(getattr(resolve(keys, shifts), name))


@given(st.sampled_from(constant_priors()), st.floats(0, 1))
def test_any_constant_takes_any_value_within_its_bounds(definition: ConstantPrior, share: float) -> None:
    wanted = definition.low + share * (definition.high - definition.low)
    assert value_of(definition.name, KEYS, {definition.name: wanted}) == pytest.approx(wanted)


@pytest.mark.parametrize(("given", "kept"), [(7.0, 1.0), (0.01, 0.3)])
def test_a_value_beyond_the_bounds_is_cut(given: float, kept: float) -> None:
    assert value_of("gemm_efficiency", KEYS, {"gemm_efficiency": given}) == pytest.approx(kept)


@pytest.mark.parametrize(
    "other",
    [
        RowKeys(["hopper"], ["h100-sxm-80gb"], ["megatron-core"]),
        RowKeys(["ampere"], ["a100-sxm-80gb"], ["torchtitan"]),
    ],
)
def test_other_stacks_stay_as_they_were(other: RowKeys) -> None:
    before = resolve(other, shipped_calibration().shifts)
    assert value_of("gemm_efficiency", other, {"gemm_efficiency": 0.4}) == float(before.gemm_efficiency)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"format": "asap-rank-profile-1"}, "format"),
        ({"format": None}, "format"),
        ({"framework": 7}, "framework"),
        ({"device": ""}, "device"),
        ({"coefficients": [1]}, "coefficients"),
        ({"coefficients": {"speed": 1.0}}, "coefficients.speed"),
        ({"coefficients": {"gemm_efficiency": "fast"}}, "coefficients.gemm_efficiency"),
        ({"coefficients": {"gemm_efficiency": True}}, "coefficients.gemm_efficiency"),
        ({"coefficients": {"gemm_efficiency": 1e9}}, "coefficients.gemm_efficiency"),
        ({"coefficients": {"gemm_wave_weight": 0.0}}, "coefficients.gemm_wave_weight"),
        ({"coefficients": {"gemm_efficiency": float("nan")}}, "coefficients.gemm_efficiency"),
    ],
)
def test_a_bad_file_is_refused_by_field(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_cluster_calibration({**GOOD, **change}, "cluster.json")
    assert caught.value.path == f"cluster.json: {field}"
