"""Real traces against the figures that stand beside them in the shared folder."""

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tools.trace.breakdown import occupy
from tools.trace.classify import classify, load_patterns
from tools.trace.kineto import read_kineto
from tools.trace.overview import OverviewHeader
from tools.trace.report import TraceAnalysis, analyse_folder

TRACES = Path(__file__).resolve().parents[2] / ".." / "shared" / "traces"
TOLERANCE_US = 0.001

pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason="the shared traces are not beside the repo")


def _expected() -> dict[str, dict[str, Any]]:
    path = TRACES / "expected.json"
    content: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.is_file() else {}
    return content


@pytest.mark.parametrize("name", sorted(_expected()))
def test_every_expected_figure_is_met_to_a_nanosecond(name: str) -> None:
    expected, trace = _expected()[name], read_kineto(TRACES / name)
    ours = occupy(classify(trace, load_patterns()), trace.launches).whole().as_microseconds()
    assert len(trace.device) == expected.pop("num_gpu_events")
    assert {figure: getattr(ours, figure) for figure in expected} == pytest.approx(expected, abs=TOLERANCE_US)


def test_megatron_stragglers_are_ranks_0_and_6_and_its_transfers_and_products_are_believable() -> None:
    analysis = analyse_folder(TRACES / "megatron_tp8", workers=1)
    report = analysis.report
    assert sorted(straggler.rank for straggler in report.stragglers) == [0, 6]
    assert all(straggler.cause.startswith("host late") for straggler in report.stragglers)
    transfer_ms = sum(collective.transfer_us for collective in report.collectives) / 1000
    assert transfer_ms == pytest.approx(50, rel=0.02)
    assert sum(collective.waiting_us or 0.0 for collective in report.collectives) / 1000 > 5 * transfer_ms
    waits = {rank.rank: rank.waiting for rank in _glance(analysis).ranks}
    assert np.mean([*waits.values()]) == pytest.approx(0.59, abs=0.01)
    assert sorted(waits, key=waits.__getitem__)[:2] == [0, 6]
    longest = report.collectives[0]
    assert longest.message_bytes == 4 * 2048 * 4096 * 2
    assert 150 < (longest.bus_bandwidth_gbytes_per_s or 0) < (longest.link_gbytes_per_s or 0)
    for rank in analysis.profile.ranks:
        assert rank.roofline
        for point in rank.roofline:
            assert point.achieved_flops_per_s <= (point.roof_flops_per_s or 0) * 1.02, point


def _glance(analysis: TraceAnalysis) -> OverviewHeader:
    """What the trace page draws of all ranks."""
    packed = gzip.decompress(analysis.overview())
    return msgspec.json.decode(packed[4 : 4 + int.from_bytes(packed[:4], "little")], type=OverviewHeader)


@pytest.mark.parametrize(
    "name", ["mi300_ddp_resnet18", "mi250_minitoy_train", "cpu_only_rank34", "b200_eager"]
)
def test_other_vendors_and_cpu_traces_are_read(name: str) -> None:
    (rank,) = analyse_folder(TRACES / "single" / f"{name}.json.gz").report.ranks
    parts = ("compute_us", "exposed_communication_us", "memory_us", "idle_us")
    assert sum(getattr(rank, part) for part in parts) == pytest.approx(rank.total_us, abs=TOLERANCE_US)
    assert rank.total_us > 0
    assert rank.basis == ("host" if name.startswith("cpu") else "device")
    # a custom all-reduce is named as a suspect
    assert any("multimem_all_reduce" in note for note in rank.notes) == (name == "b200_eager")
