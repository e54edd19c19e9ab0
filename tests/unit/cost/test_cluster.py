"""The cost model fitted to one cluster: what was measured is taken, and nothing else moves."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.cost.calibration import (
    ClusterCalibration,
    calibrated_to,
    parse_cluster_calibration,
    shipped_calibration,
)
from tools.cost.constants import Definition, RowKeys, definitions, resolve
from tools.errors import InputError

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


@given(st.sampled_from(definitions()), st.floats(0, 1))
def test_any_constant_takes_any_value_within_its_bounds(definition: Definition, share: float) -> None:
    wanted = definition.low + share * (definition.high - definition.low)
    assert value_of(definition.name, KEYS, {definition.name: wanted}) == pytest.approx(wanted)


@pytest.mark.parametrize(("given", "kept"), [(7.0, 1.0), (0.01, 0.3)])
def test_a_value_beyond_the_bounds_is_cut(given: float, kept: float) -> None:
    assert value_of("gemm_efficiency", KEYS, {"gemm_efficiency": given}) == pytest.approx(kept)


def test_calibrating_again_replaces_the_first_value() -> None:
    once = calibrated_to(shipped_calibration(), KEYS, {"gemm_efficiency": 0.5})
    twice = calibrated_to(once, KEYS, {"gemm_efficiency": 0.7})
    assert float(resolve(KEYS, twice.shifts).gemm_efficiency) == pytest.approx(0.7)


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


def test_links_are_the_devices_whatever_trains_on_it() -> None:
    other_framework = RowKeys(["hopper"], ["h100-sxm-80gb"], ["megatron-core"])
    other_device = RowKeys(["hopper"], ["h200-sxm-141gb"], ["torchtitan"])
    before = resolve(other_device, shipped_calibration().shifts)
    measured = {"slow_link_efficiency": 0.31}
    assert value_of("slow_link_efficiency", other_framework, measured) == pytest.approx(0.31)
    assert value_of("slow_link_efficiency", other_device, measured) == float(before.slow_link_efficiency)


def test_what_was_not_measured_does_not_move() -> None:
    before = resolve(KEYS, shipped_calibration().shifts)
    after = resolve(KEYS, calibrated_to(shipped_calibration(), KEYS, {"dp_exposed": 0.9}).shifts)
    for definition in definitions():
        if definition.name != "dp_exposed":
            assert float(getattr(after, definition.name)) == float(getattr(before, definition.name))


def test_intervals_are_not_narrowed() -> None:
    after = calibrated_to(shipped_calibration(), KEYS, {"gemm_efficiency": 0.5})
    assert after.intervals is shipped_calibration().intervals


def test_a_file_gives_back_what_was_written() -> None:
    cluster = ClusterCalibration("torchtitan", "hopper", "h100-sxm-80gb", {"gemm_efficiency": 0.6})
    data = json.loads(json.dumps(cluster.to_data()))
    assert parse_cluster_calibration(data, "file") == cluster


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
    assert caught.value.field == f"cluster.json: {field}"
