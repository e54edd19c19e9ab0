"""The timed plans of a search, packed and unpacked: the same plans, in the same order."""

import numpy as np
import pytest

from tests.unit.search.scenes import scenario
from tools.search.constraints import Constraints
from tools.search.search import Search, SearchOutcome


@pytest.fixture(scope="module")
def found() -> SearchOutcome:
    return Search(scenario("megatron-core"), Constraints()).run()


def test_every_timed_plan_is_handed_on_fastest_first(found: SearchOutcome) -> None:
    assert len(found.every.step_time_s) == found.timed
    assert np.all(np.diff(found.every.step_time_s) >= 0)
    assert found.every.plans.plan(0) == found.best.plans.plan(0)
