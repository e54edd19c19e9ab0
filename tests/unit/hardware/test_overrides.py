"""`cluster.overrides`: which figures may be replaced, and by what."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.errors import InputError
from tools.hardware import device_names, get_device
from tools.hardware.catalogue import FIGURES, LARGEST_FACTOR, in_file_units
from tools.hardware.device import Figure

names = st.sampled_from(device_names())
amounts = st.sampled_from([figure for figure in FIGURES if not figure.measure.integral])
factors = st.floats(1 / LARGEST_FACTOR, LARGEST_FACTOR, exclude_min=True, exclude_max=True)


def fault_of(overrides: object, name: str = "h100-sxm-80gb") -> InputError:
    with pytest.raises(InputError) as caught:
        get_device(name, overrides)  # type: ignore[arg-type]
    return caught.value


def test_a_figure_is_replaced_in_the_units_of_the_file() -> None:
    device = get_device(
        "h100", {"inter_node_gbps_per_device": 100, "memory_gib": 40.5, "devices_per_node": 4.0}
    )
    assert device.inter_node_bytes_per_s == 12.5e9
    assert device.memory_bytes == 40.5 * 2**30
    assert device.devices_per_node == 4
    assert isinstance(device.devices_per_node, int)


def test_a_switched_device_can_be_given_a_torus_and_back() -> None:
    assert get_device("h100", {"torus_dimensions": 3}).torus_dimensions == 3
    assert get_device("tpu-v5p", {"torus_dimensions": 0}).torus_dimensions == 0


@pytest.mark.parametrize(
    ("overrides", "field", "allowed"),
    [
        (
            {"inter_node_gbps_per_devices": 100},
            "inter_node_gbps_per_devices",
            "did you mean inter_node_gbps_per_device? ",
        ),
        *(
            ({key: 1}, str(key), "a figure is one of memory_gib, ")
            for key in ("name", "sources", "zzz", "", 3)
        ),
        ({"devices_per_node": 7.5}, "devices_per_node", "must be a whole number of devices of at least 1"),
        *(
            ({"torus_dimensions": value}, "torus_dimensions", "whole number of dimensions from 0 to 3")
            for value in (1.5, -1, 4, math.nan, math.inf, "2", False, None)
        ),
        *(({"peak_tflops": value}, "peak_tflops", "") for value in (989, None, [1], "bf16")),
        ({"peak_tflops": {"nvfp4": 1}}, "peak_tflops.nvfp4", "h100-sxm-80gb has fp32, tf32, fp16, bf16, fp8"),
        ({"peak_tflops.nvfp4": 1}, "peak_tflops.nvfp4", "h100-sxm-80gb has fp32, tf32, fp16, bf16, fp8"),
        # a mistaken unit is answered with the catalogue's own figure
        (
            {"memory_gib": 2**36},
            "memory_gib",
            "must lie from 0.07911 to 7.911e+04 GiB (the catalogue has 79.11)",
        ),
    ],
)
def test_a_wrong_override_names_its_field_and_what_is_allowed(
    overrides: dict[Any, Any], field: str, allowed: str
) -> None:
    fault = fault_of(overrides)
    assert fault.path == f"cluster.overrides.{field}"
    assert allowed in fault.rule


@given(names, amounts, factors)
def test_any_amount_within_the_factor_is_taken_exactly(name: str, figure: Figure, factor: float) -> None:
    value = in_file_units(get_device(name), figure) * factor
    device = get_device(name, {figure.key: value})
    assert getattr(device, figure.field) == value * figure.measure.base_per_unit
    assert in_file_units(device, figure) == pytest.approx(value, rel=1e-11)


@given(
    names,
    st.dictionaries(
        st.sampled_from([figure.key for figure in FIGURES] + ["peak_tflops", "peak_tflops.bf16"]) | st.text(),
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text()
        | st.dictionaries(st.text(), st.floats()),
    ),
)
def test_overrides_of_any_kind_give_a_sound_device_or_one_line(name: str, overrides: dict[str, Any]) -> None:
    try:
        device = get_device(name, overrides)
    except InputError as error:
        device, field = get_device(name), error.path
    else:
        field = "cluster.overrides"
    assert field.startswith("cluster.overrides")
    for figure in FIGURES:
        assert 0 <= getattr(device, figure.field) < math.inf
    assert all(0 < peak < math.inf for peak in device.peak_flops.values())
