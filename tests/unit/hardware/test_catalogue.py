"""Finding a device by name: units, aliases, unknown names, broken files."""

import pickle
import subprocess
import sys

import pytest

from tools.errors import DataError, InputError
from tools.hardware import describe, device_names, get_device
from tools.hardware.catalogue import parse_device

FILE = """
name = "toy"
title = "A toy"
vendor = "nvidia"
generation = "hopper"
aliases = ["plaything"]
memory_gib = 2
memory_bandwidth_gbytes_per_s = 3
compute_units = 4
tile_m = 5
tile_n = 6
launch_overhead_us = 7
intra_node_gbytes_per_s_per_device = 8
intra_node_latency_us = 9
fast_domain_devices = 10
devices_per_node = 11
inter_node_gbps_per_device = 12
inter_node_latency_us = 13
torus_dimensions = 2
[peak_tflops]
fp32 = 14
bf16 = 15
[sources]
memory_gib = "a"
memory_bandwidth_gbytes_per_s = "b"
compute_units = "c"
tile_m = "d"
tile_n = "e"
launch_overhead_us = "f"
intra_node_gbytes_per_s_per_device = "g"
intra_node_latency_us = "h"
fast_domain_devices = "i"
devices_per_node = "j"
inter_node_gbps_per_device = "k"
inter_node_latency_us = "l"
torus_dimensions = "m"
peak_tflops = "all peaks"
"peak_tflops.fp32" = "this peak"
"""


def test_a_file_is_converted_to_base_units() -> None:
    device = parse_device("toy", FILE)
    assert device.memory_bytes == 2 * 2**30
    assert device.memory_bandwidth_bytes_per_s == 3e9
    assert (device.compute_units, device.tile_m, device.tile_n) == (4, 5, 6)
    assert device.launch_overhead_s == pytest.approx(7e-6)
    assert device.intra_node_bytes_per_s == 8e9
    assert device.intra_node_latency_s == pytest.approx(9e-6)
    assert (device.fast_domain_devices, device.devices_per_node, device.torus_dimensions) == (10, 11, 2)
    assert device.inter_node_bytes_per_s == 12e9 / 8
    assert device.inter_node_latency_s == pytest.approx(13e-6)
    assert device.peak_flops == {"fp32": 14e12, "bf16": 15e12}


def test_a_peak_without_a_source_of_its_own_has_that_of_all_peaks() -> None:
    sources = parse_device("toy", FILE).sources
    assert (sources["peak_tflops.fp32"], sources["peak_tflops.bf16"]) == ("this peak", "all peaks")


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("memory_gib = 2", "", "lacks memory_gib"),
        ("memory_gib = 2", "memory_gib = 2\nmemory_gb = 2", "does not know memory_gb"),
        ("memory_gib = 2", 'memory_gib = "2"', "memory_gib is '2', must be a finite number of GiB above 0"),
        ("memory_gib = 2", "memory_gib = nan", "memory_gib is nan"),
        ("memory_gib = 2", "memory_gib = -1", "memory_gib is -1"),
        ("compute_units = 4", "compute_units = 4.5", "compute_units is 4.5, must be a whole number"),
        ("torus_dimensions = 2", "torus_dimensions = 4", "from 0 to 3"),
        ('name = "toy"', 'name = "tie"', "name is 'tie', must be one of toy"),
        ('vendor = "nvidia"', 'vendor = "acme"', "vendor is 'acme'"),
        ('generation = "hopper"', 'generation = "hoper"', "generation is 'hoper'"),
        ('title = "A toy"', 'title = ""', "title must be a text"),
        ('aliases = ["plaything"]', "aliases = [1]", "aliases must be a list of names"),
        ("bf16 = 15", "bf17 = 15", "peak_tflops.bf17 is none of fp32"),
        ("bf16 = 15", "bf16 = 0", "peak_tflops.bf16 is 0"),
        ("fp32 = 14\nbf16 = 15", "", "[peak_tflops] must give a figure"),
        ('memory_gib = "a"', 'memory_gib = " "', "memory_gib has no source"),
        ('memory_gib = "a"', "", "memory_gib has no source"),
        ('memory_gib = "a"', 'memory_gib = "a"\nprice = "b"', "sources names no figure with price"),
        ("[sources]", "[sources", "not TOML"),
    ],
)
def test_a_broken_file_is_named_with_its_fault(old: str, new: str, complaint: str) -> None:
    assert old in FILE
    with pytest.raises(DataError) as caught:
        parse_device("toy", FILE.replace(old, new, 1))
    assert str(caught.value).startswith("kb_seed/hardware/toy.toml: ")
    assert complaint in str(caught.value)


@pytest.mark.parametrize("name", ["toy"])
def test_sources_must_be_a_table(name: str) -> None:
    text = FILE[: FILE.index("[sources]")].replace("[peak_tflops]", 'sources = "me"\n[peak_tflops]')
    with pytest.raises(DataError, match=r"\[sources\] must be a table"):
        parse_device(name, text)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("h100", "h100-sxm-80gb"),
        ("a100-80gb", "a100-sxm-80gb"),
        ("A100_SXM_40GB", "a100-sxm-40gb"),
        (" H200 SXM 141GB ", "h200-sxm-141gb"),
        ("tpu-v7x", "tpu7x"),
        ("ironwood", "tpu7x"),
        ("trillium", "tpu-v6e"),
    ],
)
def test_an_alias_or_another_spelling_finds_the_device(written: str, name: str) -> None:
    assert get_device(written).name == name


def test_no_alias_names_two_devices() -> None:
    aliases = [alias for name in device_names() for alias in get_device(name).aliases]
    assert len(aliases) == len(set(aliases))
    assert not set(aliases) & set(device_names())


@pytest.mark.parametrize(
    ("written", "meant"),
    [("h100-smx-80gb", "h100-sxm-80gb"), ("b2000", "b200"), ("tpuv5p", "tpu-v5p"), ("ironwod", "tpu7x")],
)
def test_an_unknown_name_is_answered_with_the_nearest_and_all_others(written: str, meant: str) -> None:
    with pytest.raises(InputError) as caught:
        get_device(written)
    assert caught.value.field == "cluster.device"
    assert caught.value.given == written
    assert meant in caught.value.allowed.partition("? known: ")[0]
    assert all(name in caught.value.allowed.partition("known: ")[2] for name in device_names())


@pytest.mark.parametrize("written", ["", "zzzzzzzz", "../cpu", "cpu.toml"])
def test_a_name_like_none_of_the_catalogue_is_refused(written: str) -> None:
    with pytest.raises(InputError, match="known: a100-sxm-40gb, "):
        get_device(written)


@pytest.mark.parametrize("written", [None, 100, ["h100"], {}])
def test_something_other_than_a_name_is_refused(written: object) -> None:
    with pytest.raises(InputError, match="must be a name"):
        get_device(written)  # type: ignore[arg-type]


def test_a_device_is_read_once() -> None:
    assert get_device("b200") is get_device("b200")


def test_a_device_can_be_hashed_and_sent_to_another_process() -> None:
    device = get_device("b200")
    assert pickle.loads(pickle.dumps(device)) == device
    assert hash(device) == hash(get_device("b200", {}))


@pytest.mark.parametrize("name", device_names())
def test_describe_gives_back_what_the_file_says(name: str) -> None:
    described = describe(get_device(name))
    peaks = described.pop("peak_tflops")
    device = get_device(name)
    assert described["memory_gib"] * 2**30 == device.memory_bytes
    assert described["inter_node_gbps_per_device"] * (1e9 / 8) == device.inter_node_bytes_per_s
    assert {key: peak * 1e12 for key, peak in peaks.items()} == device.peak_flops
    assert described["sources"] == device.sources


def test_importing_the_catalogue_loads_neither_numpy_nor_a_data_file() -> None:
    code = (
        "import sys, tools.hardware.catalogue as catalogue;"
        "print('numpy' in sys.modules, catalogue._load.cache_info().misses)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["False", "0"]
