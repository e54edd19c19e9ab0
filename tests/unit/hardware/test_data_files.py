"""What every file of the hardware catalogue must hold."""

import re
from dataclasses import fields

import pytest

from tools.hardware import Device, device_names, get_device
from tools.hardware.device import FIGURES, Collectives, peak_key

WANTED = {
    *("v100-sxm-32gb", "a100-sxm-40gb", "a100-sxm-80gb", "a800-sxm-80gb", "h100-sxm-80gb", "h100-pcie-80gb"),
    *("h100-96gb-hbm2e-500w", "h200-sxm-141gb", "b200", "b300", "gb200", "gb300"),
    *("h800-sxm-80gb", "h20-sxm-96gb", "l40s", "rtx-4090", "rtx-5090", "rtx-pro-6000-blackwell"),
    *("mi250x", "mi300x", "mi325x", "mi350x", "mi355x", "gaudi2", "gaudi3"),
    *("tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu7x", "trainium1", "trainium2", "cpu"),
}
OWN_WORD = re.compile(r"(measured|assumption|by definition): \S")
CITATION = re.compile(r"[^ ,].*\S, https://[\w.-]+\.[a-z]+/\S*$")

every_device = pytest.mark.parametrize("name", device_names())


def test_the_catalogue_has_the_devices_that_callers_name() -> None:
    assert set(device_names()) >= WANTED


@every_device
def test_every_figure_names_a_public_document_or_admits_to_be_measured_or_assumed(name: str) -> None:
    device = get_device(name)
    keys = [figure.key for figure in FIGURES] + [peak_key(precision) for precision in device.peak_flops]
    assert list(device.sources) == [*keys, *(["collectives"] if device.collectives != Collectives() else [])]
    for key, source in device.sources.items():
        assert OWN_WORD.match(source) or CITATION.match(source), (key, source)
        assert source.count("https://") <= 1
        assert " " not in source.partition("https://")[2], "an address stands at the end"


@every_device
def test_a_narrower_format_is_never_slower_on_an_accelerator(name: str) -> None:
    device = get_device(name)
    if device.vendor == "cpu":
        pytest.skip("a CPU without 16-bit units emulates them")
    # fp16 and bf16 run on the same units, so do fp8 and mxfp8.
    order = ("fp32", "tf32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4")
    peaks = [device.peak_flops[precision] for precision in order if precision in device.peak_flops]
    assert peaks == sorted(peaks)


@every_device
def test_links_get_slower_with_distance_and_every_field_is_filled(name: str) -> None:
    device = get_device(name)
    assert device.memory_bandwidth_bytes_per_s > device.intra_node_bytes_per_s > device.inter_node_bytes_per_s
    assert device.launch_overhead_s < device.inter_node_latency_s
    assert device.intra_node_latency_s < device.inter_node_latency_s
    assert device.fast_domain_devices >= device.devices_per_node, "a torus holds a node or is the node"
    assert not [field.name for field in fields(Device) if getattr(device, field.name) in ("", None)]


def test_devices_of_one_generation_share_the_tile() -> None:
    tiles: dict[str, set[tuple[int, int]]] = {}
    for device in map(get_device, device_names()):
        tiles.setdefault(device.generation, set()).add((device.tile_m, device.tile_n))
    assert all(len(shapes) == 1 for shapes in tiles.values())


@pytest.mark.parametrize(
    ("name", "bf16_tflops", "fp8_tflops", "memory_tbytes_per_s", "link_gbytes_per_s"),
    [
        ("a100-sxm-80gb", 312, None, 2.04, 300),
        ("h100-sxm-80gb", 989, 1979, 3.35, 450),
        ("h200-sxm-141gb", 989, 1979, 4.8, 450),
        ("b200", 2250, 4500, 7.67, 900),
        ("gb200", 2500, 5000, 8.0, 900),
        ("h800-sxm-80gb", 989, 1979, 3.35, 200),
        ("h20-sxm-96gb", 148, 296, 4.0, 450),
        ("rtx-4090", 165, 330, 1.008, 32),
        ("mi300x", 1307, 2615, 5.3, 448),
        ("mi350x", 2307, 4614, 8.0, 535.5),
        ("tpu-v5p", 459, 459, 2.765, 600),
        ("tpu7x", 2307, 4614, 7.38, 600),
    ],
)
def test_well_known_figures_are_dense_and_one_direction(
    name: str,
    bf16_tflops: float,
    fp8_tflops: float | None,
    memory_tbytes_per_s: float,
    link_gbytes_per_s: float,
) -> None:
    device = get_device(name)
    assert device.peak_flops["bf16"] == pytest.approx(bf16_tflops * 1e12, rel=2e-3)
    assert device.peak_flops.get("fp8") == (fp8_tflops and pytest.approx(fp8_tflops * 1e12, rel=2e-3))
    assert device.memory_bandwidth_bytes_per_s == pytest.approx(memory_tbytes_per_s * 1e12, rel=1e-3)
    assert device.intra_node_bytes_per_s == pytest.approx(link_gbytes_per_s * 1e9)
