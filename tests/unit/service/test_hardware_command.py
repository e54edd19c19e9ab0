"""`asap hardware list` and `asap hardware show`."""

import json
from argparse import ArgumentParser
from typing import Any

import pytest

from service.cli import hardware
from tools.errors import InputError
from tools.hardware import device_names, get_device


def asap_hardware(*words: str) -> int:
    parser = ArgumentParser()
    hardware.add_arguments(parser)
    return hardware.run(parser.parse_args(words))


@pytest.fixture(autouse=True)
def terminal_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def json_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_list_has_a_line_for_every_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert asap_hardware("list") == 0
    rows = [line.split() for line in printed(capsys).splitlines()]
    assert [row[0] for row in rows if row and row[0] in device_names()] == list(device_names())
    assert ["h100-sxm-80gb", "79.1", "3350", "989", "1979", "-", "450", "400", "8"] in rows
    assert ["tpu-v5p", "95.0", "2765", "459", "459", "-", "600", "50", "8960", "3D"] in rows


def test_list_fits_80_columns_and_cuts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    asap_hardware("list")
    text = printed(capsys)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text


def test_a_device_without_bf16_is_listed_with_fp16(capsys: pytest.CaptureFixture[str]) -> None:
    asap_hardware("list")
    row = next(line.split() for line in printed(capsys).splitlines() if line.startswith("v100"))
    assert row[3] == "125"


def test_list_in_json_is_one_object_a_line_in_the_files_units(capsys: pytest.CaptureFixture[str]) -> None:
    assert asap_hardware("list", "--json") == 0
    devices = json_lines(printed(capsys))
    assert [device["name"] for device in devices] == list(device_names())
    a100 = devices[device_names().index("a100-sxm-80gb")]
    assert a100["memory_gib"] == 79.32
    assert a100["inter_node_gbps_per_device"] == 200
    assert a100["peak_tflops"]["bf16"] == 312
    assert "sources" not in a100


def test_show_prints_every_figure_with_a_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert asap_hardware("show", "b200") == 0
    text = printed(capsys)
    for key, source in get_device("b200").sources.items():
        line = next(line for line in text.splitlines() if line.startswith(f"{key} "))
        number = line.split()[-1]
        cited = text.partition(f" {number} ")[2].partition("\n [")[0]
        assert cited.split() == source.replace(", https://", " https://").split()


def test_show_prints_the_value_of_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    asap_hardware("show", "h100")
    rows = [line.split()[:3] for line in printed(capsys).splitlines()]
    assert ["inter_node_gbps_per_device", "400", "Gbit/s"] in rows
    assert ["peak_tflops.fp8", "1978.9", "TFLOP/s"] in rows


def test_show_tells_the_aliases(capsys: pytest.CaptureFixture[str]) -> None:
    asap_hardware("show", "ironwood")
    assert printed(capsys).startswith("tpu7x  Google TPU7x (Ironwood), one chip of two cores (google")


def test_show_in_json_can_be_fed_back_as_overrides(capsys: pytest.CaptureFixture[str]) -> None:
    assert asap_hardware("show", "mi300x", "--json") == 0
    (device,) = json_lines(printed(capsys))
    head = ("name", "title", "vendor", "generation", "aliases", "sources")
    overrides = {key: value for key, value in device.items() if key not in head}
    again, original = get_device("mi300x", overrides), get_device("mi300x")
    assert again.peak_flops == original.peak_flops
    assert again.memory_bytes == original.memory_bytes
    assert set(device["sources"]) == set(original.sources)


def test_show_of_an_unknown_device_names_the_argument_and_the_nearest() -> None:
    with pytest.raises(InputError) as caught:
        asap_hardware("show", "h100-sxn-80gb")
    assert caught.value.field == "NAME"
    assert "did you mean h100-sxm-80gb" in caught.value.allowed
