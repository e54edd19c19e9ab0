"""The traces that ship with the repo: a real run of two gloo ranks with one late."""

from pathlib import Path

from tools.trace.report import analyse_folder

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "traces" / "ddp-gloo-straggler"


def test_the_rank_with_the_larger_batch_is_the_straggler() -> None:
    report = analyse_folder(EXAMPLE).report
    (straggler,) = report.stragglers
    assert (straggler.rank, straggler.cause) == (1, "compute longer")
    assert report.unreadable == []


def test_a_gloo_run_has_all_terms() -> None:
    report = analyse_folder(EXAMPLE).report
    assert len(report.ranks) == 2
    for rank in report.ranks:
        assert rank.basis == "host"
        assert rank.compute_us > 0
        assert rank.communication_us > 0
        assert len(rank.steps) == 3
        assert rank.memory is not None
        assert rank.memory.peak_allocated_gib > 0
        assert rank.roofline
    sizes = {entry.message_bytes for entry in report.collectives}
    parameters = 512 * 1024 + 1024 + 1024 * 1024 + 1024 + 1024 * 512 + 512
    assert sum(size for size in sizes if size) == parameters * 4
