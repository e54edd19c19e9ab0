"""The hardware catalogue: what a data file must hold, and how a device is found by name."""

import re
import subprocess
import sys
import tomllib
from typing import Any

import pytest

import kb_seed
from tools.errors import DataError
from tools.hardware import describe, device_names, get_device
from tools.hardware.catalogue import FIGURES, find_reported, find_vendor, parse_device
from tools.hardware.device import Collectives, Device, peak_key

FIGURES_IN_FILE = {figure.key: number for number, figure in enumerate(FIGURES, start=2)} | {
    "torus_dimensions": 2
}
FILE = "\n".join(
    [
        'name = "toy"\ntitle = "A toy"\nvendor = "nvidia"\ngeneration = "made-up"\naliases = ["plaything"]',
        *(f"{name} = {value}" for name, value in FIGURES_IN_FILE.items()),
        "[peak_tflops]\nfp32 = 14\nbf16 = 15\n[sources]",
        *(f'{name} = "a page"' for name in FIGURES_IN_FILE),
        'peak_tflops = "all peaks"\n"peak_tflops.fp32" = "this peak"\n',
    ]
)
OWN_WORD = re.compile(r"(measured|assumption|by definition): \S")
CITATION = re.compile(r"[^ ,].*\S, https://[\w.-]+\.[a-z]+/\S*$")
every_device = pytest.mark.parametrize("name", device_names())


def test_a_file_is_converted_to_base_units_and_may_name_a_new_generation() -> None:
    device = parse_device("toy", FILE, Device)
    assert (device.memory_bytes, device.memory_bandwidth_bytes_per_s) == (2 * 2**30, 3e9)
    assert (device.compute_units, device.tile_m, device.tile_n) == (4, 5, 6)
    assert device.launch_overhead_s == pytest.approx(7e-6)
    assert (device.exponentials_per_s, device.power_w) == (8e12, 9)
    assert device.intra_node_bytes_per_s == 10e9
    assert device.intra_node_latency_s == pytest.approx(11e-6)
    assert (device.fast_domain_devices, device.devices_per_node, device.torus_dimensions) == (12, 13, 2)
    assert device.inter_node_bytes_per_s == 14e9 / 8
    assert device.inter_node_latency_s == pytest.approx(15e-6)
    assert device.peak_flops == {"fp32": 14e12, "bf16": 15e12}
    sources = (device.sources["peak_tflops.fp32"], device.sources["peak_tflops.bf16"])
    assert sources == ("this peak", "all peaks"), "that of all, unless a peak has its own"
    assert device.generation == "made-up"


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("memory_gib = 2", "", "memory_gib: Field required"),
        ("memory_gib = 2", "memory_gib = 2\nmemory_gb = 2", "memory_gb: Extra inputs are not permitted"),
        ("memory_gib = 2", 'memory_gib = "2"', "memory_gib: Value error, must be a finite number of GiB"),
        ("memory_gib = 2", "memory_gib = nan", "memory_gib: "),
        ("memory_gib = 2", "memory_gib = -1", "memory_gib: "),
        ("compute_units = 4", "compute_units = 4.5", "compute_units: Value error, must be a whole number"),
        ("torus_dimensions = 2", "torus_dimensions = 4", "from 0 to 3"),
        ('name = "toy"', 'name = "tie"', "name is 'tie'"),
        ('vendor = "nvidia"', 'vendor = "acme"', "vendor: Input should be 'nvidia', 'amd'"),
        ('title = "A toy"', 'title = ""', "title: "),
        ('aliases = ["plaything"]', "aliases = [1]", "aliases.0: "),
        ("bf16 = 15", "bf17 = 15", "peak_tflops.bf17"),
        ("bf16 = 15", "bf16 = 0", "peak_tflops.bf16: Value error, must be a finite number of TFLOP/s"),
        ("fp32 = 14\nbf16 = 15", "", "peak_tflops: "),
        ('memory_gib = "a page"', 'memory_gib = " "', "memory_gib has no source"),
        ('memory_gib = "a page"', "", "memory_gib has no source"),
        ("[sources]", '[sources]\nprice = "b"', "no figure is called price"),
        ("[sources]", "[traits]\nis_systolic = true\n[sources]", "is_systolic"),
        (
            "[sources]",
            "[collectives]\nreduce_scatter_passes = 0\n[sources]",
            "collectives.reduce_scatter_passes",
        ),
        ("[sources]", "[sources", "not TOML"),
    ],
)
def test_a_broken_file_is_named_with_its_fault(old: str, new: str, complaint: str) -> None:
    assert old in FILE
    with pytest.raises(DataError) as caught:
        parse_device("toy", FILE.replace(old, new, 1), Device)
    assert str(caught.value).startswith("kb_seed/hardware/toy.toml: ")
    assert complaint in str(caught.value)


@every_device
def test_every_file_is_sound(name: str) -> None:
    device = get_device(name)
    keys = [figure.key for figure in FIGURES] + [peak_key(precision) for precision in device.peak_flops]
    assert list(device.sources) == [*keys, *(["collectives"] if device.collectives != Collectives() else [])]
    for source in (*device.sources.values(), *device.traits.sources.values()):
        assert OWN_WORD.match(source) or CITATION.match(source), source
        assert " " not in source.partition("https://")[2], "one address, at the end"
    # a narrower format is never slower; fp16 and bf16 run on the same units, so do fp8 and mxfp8
    order = ("fp32", "tf32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4")
    peaks = [device.peak_flops[precision] for precision in order if precision in device.peak_flops]
    assert peaks == sorted(peaks) or device.vendor == "cpu", "a CPU emulates 16 bits"
    assert device.memory_bandwidth_bytes_per_s > device.intra_node_bytes_per_s > device.inter_node_bytes_per_s
    assert max(device.launch_overhead_s, device.intra_node_latency_s) < device.inter_node_latency_s
    assert device.fast_domain_devices >= device.devices_per_node, "a torus holds a node or is the node"
    described: dict[str, Any] = describe(device)
    stated = tomllib.loads(kb_seed.folder("hardware").joinpath(f"{name}.toml").read_text())
    assert described.items() >= {key: stated[key] for key in (*FIGURES_IN_FILE, "peak_tflops")}.items()
    assert find_vendor(name) == device.vendor


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("h100", "h100-sxm-80gb"),
        ("A100_SXM_40GB", "a100-sxm-40gb"),
        (" H200 SXM 141GB ", "h200-sxm-141gb"),
        ("ironwood", "tpu7x"),
        ("RTX 4090", "rtx-4090"),
        ("rtx_pro_6000", "rtx-pro-6000-blackwell"),
        ("Gaudi 3", "gaudi3"),
    ],
)
def test_an_alias_or_another_spelling_finds_the_device(written: str, name: str) -> None:
    assert get_device(written).name == name


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40gb"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm-80gb"),
        ("NVIDIA H200", "h200-sxm-141gb"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA B200", "b200"),
        ("AMD Instinct MI300X OAM", "mi300x"),
        ("TPU v5 lite", "tpu-v5e"),
        ("TPU v5p", "tpu-v5p"),
        ("TPU v5", "tpu-v5p"),
        ("TPU7x", "tpu7x"),
        ("a lemon", None),
    ],
)
def test_what_a_driver_calls_a_device_is_one_device_of_the_catalogue(reported: str, name: str | None) -> None:
    patterns = {device: get_device(device).reported_as for device in device_names()}
    matching = [device for device, p in patterns.items() if p and re.search(p, reported, re.IGNORECASE)]
    assert matching == ([name] if name else [])
    assert find_reported(reported) == name


def test_importing_the_catalogue_loads_neither_numpy_nor_a_data_file() -> None:
    code = (
        "import sys, tools.hardware.catalogue as catalogue;"
        "print('numpy' in sys.modules, catalogue._load.cache_info().misses)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["False", "0"]
