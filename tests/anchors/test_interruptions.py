"""Checkpoints against failures: Young's and Daly's worked figures, and a search over all intervals."""

import pytest

from tools.physics.interruptions import checkpoint_interval_s, goodput

DAY_S = 86_400.0


def test_a_day_between_failures_and_five_minutes_per_checkpoint() -> None:
    """Young (1974): sqrt(2 * 300 s * 86,400 s) is two hours; Daly adds 1.39% + 0.02%, less the writing."""
    assert checkpoint_interval_s(300.0, DAY_S) == pytest.approx(7200 * (1 + 1 / 72 + 1 / 5184) - 300)


@pytest.mark.parametrize("write_s", [5.0, 60.0, 600.0])
def test_no_other_interval_keeps_more_of_the_time(write_s: float) -> None:
    mean_s = 3 * 3600.0
    best = checkpoint_interval_s(write_s, mean_s)
    kept = goodput(best, write_s, 300.0, mean_s)
    others = [goodput(best * share / 100, write_s, 300.0, mean_s) for share in range(20, 400)]
    assert max(others) == pytest.approx(kept, rel=1e-3)
    assert max(others) > 1.01 * goodput(best * 3, write_s, 300.0, mean_s)


def test_llama_3_kept_nine_tenths_of_its_time() -> None:
    """arXiv 2407.21783, section 3.3.4: 419 unexpected interruptions in 54 days on 16,384 devices, over 90%
    effective training time."""
    mean_s = 54 * DAY_S / 419
    interval_s = checkpoint_interval_s(10.0, mean_s)
    assert 0.90 < goodput(interval_s, 10.0, 300.0, mean_s) < 0.95


def test_a_job_that_fails_faster_than_it_starts_makes_no_progress() -> None:
    assert goodput(checkpoint_interval_s(60.0, 1.0), 60.0, 600.0, 1.0) == 0.0
