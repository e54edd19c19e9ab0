"""The traces that ship with the repo: a real run of two gloo ranks with one late."""

from pathlib import Path

from tools.trace.report import analyse_folder

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "traces" / "ddp-gloo-straggler"


def test_the_rank_with_the_larger_batch_is_the_straggler() -> None:
    data = analyse_folder(EXAMPLE).data
    (straggler,) = data["stragglers"]
    assert (straggler["rank"], straggler["cause"]) == (1, "compute longer")
    assert data["unreadable"] == []


def test_a_gloo_run_has_all_terms() -> None:
    data = analyse_folder(EXAMPLE).data
    for rank in data["ranks"]:
        assert rank["basis"] == "host"
        assert rank["compute_us"] > 0
        assert rank["communication_us"] > 0
        assert len(rank["steps"]) == 3
        assert rank["memory"]["peak_allocated_gib"] > 0
        assert rank["roofline"]
    sizes = {entry["message_bytes"] for entry in data["collectives"]}
    parameters = 512 * 1024 + 1024 + 1024 * 1024 + 1024 + 1024 * 512 + 512
    assert sum(size for size in sizes if size) == parameters * 4
