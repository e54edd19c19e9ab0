"""Finding a device by name: units, aliases, unknown names, broken files."""

import pickle
import subprocess
import sys
from typing import Any

import pytest

from tools.errors import DataError, InputError
from tools.hardware import describe, device_names, get_device
from tools.hardware.catalogue import parse_device

FIGURES_IN_FILE = {
    "memory_gib": 2, "memory_bandwidth_gbytes_per_s": 3, "compute_units": 4, "tile_m": 5, "tile_n": 6,
    "launch_overhead_us": 7, "intra_node_gbytes_per_s_per_device": 8, "intra_node_latency_us": 9,
    "fast_domain_devices": 10, "devices_per_node": 11, "inter_node_gbps_per_device": 12,
    "inter_node_latency_us": 13, "torus_dimensions": 2, "tera_exponentials_per_s": 16, "power_w": 17,
}  # fmt: skip
FILE = "\n".join(
    [
        'name = "toy"\ntitle = "A toy"\nvendor = "nvidia"\ngeneration = "hopper"\naliases = ["plaything"]',
        *(f"{name} = {value}" for name, value in FIGURES_IN_FILE.items()),
        "[peak_tflops]\nfp32 = 14\nbf16 = 15\n[sources]",
        *(f'{name} = "a page"' for name in FIGURES_IN_FILE),
        'peak_tflops = "all peaks"\n"peak_tflops.fp32" = "this peak"\n',
    ]
)


def test_a_file_is_converted_to_base_units() -> None:
    device = parse_device("toy", FILE)
    assert device.memory_bytes == 2 * 2**30
    assert device.memory_bandwidth_bytes_per_s == 3e9
    assert (device.compute_units, device.tile_m, device.tile_n) == (4, 5, 6)
    assert device.launch_overhead_s == pytest.approx(7e-6)
    assert (device.exponentials_per_s, device.power_w) == (16e12, 17)
    assert device.intra_node_bytes_per_s == 8e9
    assert device.intra_node_latency_s == pytest.approx(9e-6)
    assert (device.fast_domain_devices, device.devices_per_node, device.torus_dimensions) == (10, 11, 2)
    assert device.inter_node_bytes_per_s == 12e9 / 8
    assert device.inter_node_latency_s == pytest.approx(13e-6)
    assert device.peak_flops == {"fp32": 14e12, "bf16": 15e12}
    sources = (device.sources["peak_tflops.fp32"], device.sources["peak_tflops.bf16"])
    assert sources == ("this peak", "all peaks"), "that of all, unless a peak has its own"


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
        ('memory_gib = "a page"', 'memory_gib = " "', "memory_gib has no source"),
        ('memory_gib = "a page"', "", "memory_gib has no source"),
        ("[sources]", '[sources]\nprice = "b"', "sources names no figure with price"),
        ("[sources]", "[sources", "not TOML"),
        (FILE[FILE.index("[peak_tflops]") :], 'sources = "me"\n[peak_tflops]\nfp32 = 1', "must be a table"),
    ],
)
def test_a_broken_file_is_named_with_its_fault(old: str, new: str, complaint: str) -> None:
    assert old in FILE
    with pytest.raises(DataError) as caught:
        parse_device("toy", FILE.replace(old, new, 1))
    assert str(caught.value).startswith("kb_seed/hardware/toy.toml: ")
    assert complaint in str(caught.value)


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
        ("h800", "h800-sxm-80gb"),
        ("RTX 4090", "rtx-4090"),
        ("rtx_pro_6000", "rtx-pro-6000-blackwell"),
        ("Gaudi 3", "gaudi3"),
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


@pytest.mark.parametrize(
    ("written", "answer"),
    [
        *((name, "known: a100-sxm-40gb, ") for name in ("", "zzzzzzzz", "../cpu", "cpu.toml")),
        (None, "must be a name"),
        (100, "must be a name"),
        (["h100"], "must be a name"),
    ],
)
def test_what_is_like_no_name_of_the_catalogue_is_refused(written: Any, answer: str) -> None:  # noqa: ANN401
    with pytest.raises(InputError, match=answer):
        get_device(written)


def test_a_device_is_read_once_and_can_be_hashed_and_sent_to_another_process() -> None:
    device = get_device("b200")
    assert device is get_device("b200")
    assert pickle.loads(pickle.dumps(device)) == device
    assert hash(device) == hash(get_device("b200", {}))


@pytest.mark.parametrize("name", device_names())
def test_describe_gives_back_what_the_file_says(name: str) -> None:
    device = get_device(name)
    described: dict[str, Any] = describe(device)
    assert described["memory_gib"] * 2**30 == device.memory_bytes
    assert described["inter_node_gbps_per_device"] * (1e9 / 8) == device.inter_node_bytes_per_s
    assert {key: peak * 1e12 for key, peak in described["peak_tflops"].items()} == device.peak_flops
    assert described["sources"] == device.sources


def test_importing_the_catalogue_loads_neither_numpy_nor_a_data_file() -> None:
    code = (
        "import sys, tools.hardware.catalogue as catalogue;"
        "print('numpy' in sys.modules, catalogue._load.cache_info().misses)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["False", "0"]
