"""`asap hardware list` and `asap hardware show`."""

import pytest

from tests.unit.service.cli.commands import Asap
from tools.hardware import device_names, get_device


@pytest.fixture(autouse=True)
def _terminal_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")


def test_list_has_a_line_for_every_device_that_fits_80_columns(asap: Asap) -> None:
    result = asap("hardware", "list")
    assert (result.status, result.err) == (0, "")
    rows = [line.split() for line in result.out.splitlines()]
    assert [row[0] for row in rows if row and row[0] in device_names()] == list(device_names())
    assert ["h100-sxm-80gb", "79.1", "3350", "989", "1979", "-", "450", "400", "8"] in rows
    assert ["tpu-v5p", "95.0", "2765", "459", "459", "-", "600", "50", "8960", "3D"] in rows
    without_bf16 = next(row for row in rows if row and row[0].startswith("v100"))
    assert without_bf16[3] == "125", "its fp16"
    assert max(map(len, result.out.splitlines())) <= 80
    assert "…" not in result.out


def test_list_in_json_is_one_object_per_line_in_the_files_units(asap: Asap) -> None:
    devices = asap("hardware", "list", "--json").lines
    assert [device["name"] for device in devices] == list(device_names())
    a100 = devices[device_names().index("a100-sxm-80gb")]
    assert a100["memory_gib"] == 79.32
    assert a100["inter_node_gbps_per_device"] == 200
    assert a100["peak_tflops"]["bf16"] == 312
    assert "sources" not in a100


def test_show_prints_every_figure_with_a_source(asap: Asap) -> None:
    text = asap("hardware", "show", "b200").out
    for key, source in get_device("b200").sources.items():
        line = next(line for line in text.splitlines() if line.startswith(f"{key} "))
        number = line.split()[-1]
        cited = text.partition(f"{number} ")[2].partition("\n[")[0].partition("\n [")[0]
        assert cited.split() == source.replace(", https://", " https://").split()


def test_show_prints_the_value_of_the_file_and_knows_aliases(asap: Asap) -> None:
    rows = [line.split()[:3] for line in asap("hardware", "show", "h100").out.splitlines()]
    assert ["inter_node_gbps_per_device", "400", "Gbit/s"] in rows
    assert ["peak_tflops.fp8", "1978.9", "TFLOP/s"] in rows
    ironwood = asap("hardware", "show", "ironwood").out
    assert ironwood.startswith("tpu7x  Google TPU7x (Ironwood), one chip of two cores (google")


def test_show_in_json_can_be_fed_back_as_overrides(asap: Asap) -> None:
    device = asap("hardware", "show", "mi300x", "--json").answer
    head = ("name", "title", "vendor", "generation", "aliases", "sources")
    overrides = {key: value for key, value in device.items() if key not in head}
    again, original = get_device("mi300x", overrides), get_device("mi300x")
    assert again.peak_flops == original.peak_flops
    assert again.memory_bytes == original.memory_bytes
    assert set(device["sources"]) == set(original.sources)


def test_show_of_an_unknown_device_names_the_argument_and_the_nearest(asap: Asap) -> None:
    result = asap("hardware", "show", "h100-sxn-80gb")
    assert result.refused
    assert "NAME: got" in result.err
    assert "did you mean h100-sxm-80gb" in result.err
