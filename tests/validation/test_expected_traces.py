"""Real traces against the figures that stand beside them in the shared folder."""

import json
from pathlib import Path
from typing import Any

import pytest

from tools.trace.breakdown import Breakdown, measure
from tools.trace.classify import classify, load_patterns
from tools.trace.kineto import read_kineto
from tools.trace.report import analyse_folder

TRACES = Path(__file__).resolve().parents[2] / ".." / "shared" / "traces"
TOLERANCE_US = 0.001

pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason="the shared traces are not beside the repo")


def _expected() -> dict[str, dict[str, Any]]:
    path = TRACES / "expected.json"
    content: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.is_file() else {}
    return content


def _measure(name: str) -> tuple[int, Breakdown]:
    trace = read_kineto(TRACES / name)
    return len(trace.device), measure(classify(trace, load_patterns()), trace.launches)


@pytest.mark.parametrize("name", sorted(_expected()))
def test_every_expected_figure_is_met_to_a_nanosecond(name: str) -> None:
    expected = _expected()[name]
    count, breakdown = _measure(name)
    ours = breakdown.as_microseconds()
    assert count == expected.pop("num_gpu_events")
    for figure, value in expected.items():
        assert getattr(ours, figure) == (
            value if value is None else pytest.approx(value, abs=TOLERANCE_US)
        ), figure


def test_megatron_stragglers_are_ranks_0_and_6_and_the_transfer_is_about_50_ms() -> None:
    report = analyse_folder(TRACES / "megatron_tp8", workers=1).report
    assert sorted(straggler.rank for straggler in report.stragglers) == [0, 6]
    assert all(straggler.cause.startswith("host late") for straggler in report.stragglers)
    transfer_ms = sum(collective.transfer_us for collective in report.collectives) / 1000
    assert transfer_ms == pytest.approx(50, rel=0.02)
    waiting_ms = sum(collective.waiting_us or 0.0 for collective in report.collectives) / 1000
    assert waiting_ms > 5 * transfer_ms


def test_megatron_all_reduces_reach_a_believable_part_of_the_link() -> None:
    entry = analyse_folder(TRACES / "megatron_tp8", workers=1).report.collectives[0]
    assert entry.message_bytes == 4 * 2048 * 4096 * 2
    assert entry.bus_bandwidth_gbytes_per_s
    assert entry.link_gbytes_per_s
    assert 150 < entry.bus_bandwidth_gbytes_per_s < entry.link_gbytes_per_s


def test_megatron_matrix_products_stay_below_the_roof() -> None:
    for rank in analyse_folder(TRACES / "megatron_tp8", workers=1).profile.ranks:
        assert rank.roofline
        for point in rank.roofline:
            assert point.achieved_flops_per_s <= (point.roof_flops_per_s or 0) * 1.02, point


@pytest.mark.parametrize(
    "name", ["mi300_ddp_resnet18", "mi250_minitoy_train", "cpu_only_rank34", "b200_eager"]
)
def test_other_vendors_and_cpu_traces_are_read(name: str) -> None:
    report = analyse_folder(TRACES / "single" / f"{name}.json.gz").report
    (rank,) = report.ranks
    parts = ("compute_us", "exposed_communication_us", "memory_us", "idle_us")
    assert sum(getattr(rank, part) for part in parts) == pytest.approx(rank.total_us, abs=TOLERANCE_US)
    assert rank.total_us > 0
    assert rank.basis == ("host" if name.startswith("cpu") else "device")


def test_a_custom_all_reduce_is_named_as_a_suspect() -> None:
    (rank,) = analyse_folder(TRACES / "single" / "b200_eager.json.gz").report.ranks
    assert any("multimem_all_reduce" in note for note in rank.notes)
