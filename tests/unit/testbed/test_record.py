"""What a run leaves behind, and what must be equal for two runs to be compared."""

from pathlib import Path

import pytest

from testbed.record import (
    RunSettings,
    fingerprint,
)
from tests.unit.testbed.scenarios import Json, scenario
from tools.scenario import parse_scenario

RANKS = [
    {"host": host, "device": "chip", "python": "3.11", "torch": "2.13", "backend": "gloo"}
    for host in ("a", "b")
]
DATA_PARALLEL = scenario(2, {"dp": 2})


@pytest.mark.parametrize(
    ("scenario", "settings", "rank", "same"),
    [
        pytest.param(scenario(2, {"tp": 2}), {}, {}, True, id="another plan"),
        pytest.param(scenario(2, {"dp": 2}, seq_len=32), {}, {}, False, id="longer"),
        pytest.param(scenario(2, {"dp": 2}, {"intermediate_size": 16}), {}, {}, False, id="narrower"),
        pytest.param(DATA_PARALLEL, {"seed": 1}, {}, False, id="seed"),
        pytest.param(DATA_PARALLEL, {"optimizer": "sgd"}, {}, False, id="optimizer"),
        pytest.param(DATA_PARALLEL, {}, {"torch": "2.14"}, False, id="torch"),
        pytest.param(DATA_PARALLEL, {}, {"host": "c"}, False, id="host"),
    ],
)
def test_the_fingerprint_has_all_that_a_fair_comparison_needs_but_not_the_plan(
    tmp_path: Path, scenario: Json, settings: Json, rank: dict[str, str], same: bool
) -> None:
    base = fingerprint(parse_scenario(DATA_PARALLEL), RunSettings(tmp_path), RANKS)
    other = fingerprint(
        parse_scenario(scenario), RunSettings(tmp_path, **settings), [each | rank for each in RANKS]
    )
    assert (other == base) == same
