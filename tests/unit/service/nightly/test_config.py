from typing import Any

import pytest

from service.schedules.config import (
    Policy,
    check_modes,
    load_config,
    parse,
)
from service.schedules.sources import check_workload
from tests.unit.service.nightly.builders import EXAMPLES, policy
from tools.errors import InputError

JOB: dict[str, Any] = {"name": "job", "scenario": {}, "metrics": "x"}


def test_an_address_that_may_hold_a_token_is_not_repeated() -> None:
    with pytest.raises(InputError) as refused:
        parse(Policy, {"workloads": [JOB], "recipients": {"slack": ["https://hooks/" + "secret" * 400]}})
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "allowed", "message"),
    [
        ({"mode": "tune"}, {"may_tune": True, "may_wait": False}, "ASAP_LAUNCH_TEMPLATES"),
        ({"approval": "person"}, {"may_tune": False, "may_wait": True}, "asap serve"),
    ],
)
def test_tuning_and_waiting_are_refused_if_the_installation_cannot(
    options: dict[str, Any], allowed: dict[str, bool], message: str
) -> None:
    check_modes(policy(**options), **allowed)
    with pytest.raises(InputError, match=message):
        check_modes(policy(**options), **{name: not may for name, may in allowed.items()})


def test_the_example_is_a_configuration_whose_workloads_can_be_read() -> None:
    config = load_config(EXAMPLES / "nightly.yaml")
    assert [check_workload(listed, EXAMPLES).reason for listed in config.workloads] == [None]


@pytest.mark.parametrize(
    ("stated", "fields"), [({}, []), ({"fields": None}, []), ({"fields": ["tp"]}, ["tp"])]
)
def test_trials_of_a_night_may_change_what_is_listed_and_else_nothing(
    stated: dict[str, Any], fields: list[str]
) -> None:
    night = policy(mode="tune", approval="policy", policy=stated)
    assert night.request({"model": {}})["policy"] == {"fields": fields}
