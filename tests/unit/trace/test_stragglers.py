"""Who arrives last, and why."""

import pytest

from tools.trace.breakdown import Breakdown
from tools.trace.collectives import align, find_stragglers
from tools.trace.rank_collectives import CollectiveEvent
from tools.trace.rank_profile import RankProfile

MS = 1_000_000


def _run(late_rank: int | None, num_ranks: int = 4, **before: int) -> list[RankProfile]:
    """Twenty collectives; the late rank comes 5 ms after the others, which arrive microseconds apart."""
    profiles = []
    for rank in range(num_ranks):
        events = []
        for number in range(20):
            end = (number + 1) * 20 * MS
            arrival = (
                end - 2 * MS if rank == late_rank else end - 7 * MS - ((rank + number) % num_ranks) * 1000
            )
            done = before if rank == late_rank else {}
            events.append(
                CollectiveEvent(
                    "all_reduce",
                    None,
                    None,
                    num_ranks,
                    100,
                    arrival,
                    end,
                    done.get("compute", 0),
                    done.get("host", 0),
                    done.get("loader", 0),
                )
            )
        profiles.append(
            RankProfile(file=f"{rank}", rank=rank, basis="device", breakdown=Breakdown(), collectives=events)
        )
    return profiles


@pytest.mark.parametrize(
    ("before", "cause"),
    [
        ({"compute": 5 * MS}, "compute longer"),
        ({"host": 5 * MS}, "host late"),
        ({"host": 5 * MS, "loader": 4 * MS}, "data loader"),
        ({}, "not told"),
    ],
)
def test_the_late_rank_is_named_with_what_it_was_doing(before: dict[str, int], cause: str) -> None:
    (straggler,) = find_stragglers(align(_run(2, **before)))
    assert straggler["rank"] == 2
    assert straggler["arrives_last_ratio"] == 1.0
    assert straggler["late_by_us"] == pytest.approx(5000, rel=0.01)
    assert straggler["cause"].startswith(cause)


def test_nobody_is_named_when_the_ranks_take_turns() -> None:
    assert find_stragglers(align(_run(None))) == []


def test_one_rank_alone_has_no_stragglers() -> None:
    assert find_stragglers(align(_run(0, num_ranks=1))) == []
