"""The preflight: what the devices' tools printed, what this machine says, what variables cost."""

import subprocess
from pathlib import Path

import pytest

from tools.probe.preflight import COMMANDS, Preflight, preflight, read_recorded, run_command

RECORDED = Path(__file__).parent / "recorded"
"""In the format of the tools, written by hand (no such node was at hand): eight H100s, one held down by heat,
one capped, one with errors, one with half its PCIe lanes; two NVLinks of one down; of 8 rails one down and
one at half rate; four MI300X, one capped."""


def seen(tmp_path: Path, environ: dict[str, str] | None = None) -> Preflight:
    return preflight(environ or {}, read_recorded(RECORDED), tmp_path)


def test_recorded_devices_links_and_cards_are_judged_with_what_they_cost(tmp_path: Path) -> None:
    report = seen(tmp_path)
    found = {(one.where, one.part): one for one in report.findings}
    hot = found["device 3", "compute"]
    assert "held down by heat" in hot.found
    assert hot.ratio == pytest.approx(1980 / 1320)
    assert found["device 5", "compute"].ratio == pytest.approx((700 / 500) ** (1 / 3))
    assert found["device 6", "crash"].found == "2 uncorrected memory errors"
    assert found["device 7", "network"].ratio == 2.0
    assert found["device 2", "links"].ratio == pytest.approx(18 / 16)
    assert found["mlx5_4 port 1", "network"].found == "Down, Polling"
    assert found["mlx5_7 port 1", "network"].ratio == 2.0
    assert found["card2", "compute"].found == "a power limit of 550 W"
    assert len(report.findings) == 8
    assert report.facts["cards"] == "8 ports, 400 Gb/s"


def test_the_host_and_variables_are_read(tmp_path: Path) -> None:
    files = {
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave",
        "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq": "3800000",
        "sys/devices/system/cpu/cpu0/cpufreq/base_frequency": "2000000",
        "proc/sys/kernel/numa_balancing": "1",
        "proc/loadavg": "0.10 0.10 0.10 1/2 3",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    environ = {"NCCL_P2P_DISABLE": "1", "NCCL_IB_DISABLE": "0", "NCCL_DEBUG": "WARN", "NCCL_ALGO": "Ring"}
    report = preflight(environ, lambda _: None, tmp_path)
    assert [(one.where, one.found) for one in report.findings] == [
        ("host", "CPU governor powersave"),
        ("host", "NUMA balancing on"),
        ("NCCL_P2P_DISABLE", "1"),
        ("NCCL_ALGO", "Ring"),
    ]
    assert report.findings[0].ratio == pytest.approx(1.9)
    assert all(one.cost for one in report.findings)


def test_output_that_is_not_what_the_tools_print_is_no_finding(tmp_path: Path) -> None:
    for text in ("", "garbage\x00,,,\n" * 9, "{", "[1]", '{"card0": 3}', "CA 'x'\n\tPort 1:\n"):
        report = preflight({}, lambda _, text=text: text, tmp_path)  # type: ignore[misc]
        assert all(one.where == "x port 1" for one in report.findings), text


def test_only_the_listed_commands_run(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[object] = []

    def record(command: object, **_: object) -> None:
        called.append(command)
        raise FileNotFoundError

    monkeypatch.setattr(subprocess, "run", record)
    assert [run_command(name) for name in COMMANDS] == [None] * len(COMMANDS)
    assert called == list(COMMANDS.values())
