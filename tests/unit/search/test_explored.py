"""The timed plans of a search, packed and unpacked: the same plans, in the same order."""

import numpy as np
import pytest

from tests.unit.search.scenes import scenario
from tools.search.constraints import Constraints
from tools.search.ranked import NOTHING, pack, unpack
from tools.search.search import Search, SearchOutcome
from tools.search.space import get_plan


@pytest.fixture(scope="module")
def found() -> SearchOutcome:
    return Search(scenario("megatron-core"), Constraints()).run()


def test_every_timed_plan_is_handed_on_fastest_first(found: SearchOutcome) -> None:
    assert len(found.every.step_time_s) == found.timed
    assert np.all(np.diff(found.every.step_time_s) >= 0)
    assert get_plan(found.every.plans, 0) == get_plan(found.best.plans, 0)


def test_what_is_unpacked_is_what_was_packed(found: SearchOutcome) -> None:
    unpacked = unpack(pack(found.every))
    np.testing.assert_allclose(unpacked.step_time_s, found.every.step_time_s, rtol=1e-6)
    np.testing.assert_allclose(unpacked.memory_bytes, found.every.memory_bytes, rtol=1e-6)
    for row in (0, 1, len(unpacked.step_time_s) - 1):
        assert get_plan(unpacked.plans, row) == get_plan(found.every.plans, row)


def test_a_search_that_timed_nothing_is_packed_too() -> None:
    assert len(unpack(pack(NOTHING)).step_time_s) == 0
