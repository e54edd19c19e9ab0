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


def test_show_prints_every_figure_with_a_source(asap: Asap) -> None:
    text = asap("hardware", "show", "b200").out
    for key, source in get_device("b200").sources.items():
        line = next(line for line in text.splitlines() if line.startswith(f"{key} "))
        number = line.split()[-1]
        cited = text.partition(f"{number} ")[2].partition("\n[")[0].partition("\n [")[0]
        assert cited.split() == source.replace(", https://", " https://").split()
