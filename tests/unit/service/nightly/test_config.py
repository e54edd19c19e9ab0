from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.nightly.config import Config, Policy, Workload, check_modes, load_config, load_yaml, parse
from service.nightly.review import check_workload
from tests.unit.service.nightly.builders import EXAMPLES, add_nights, policy, workload
from tools.errors import InputError

JOB: dict[str, Any] = {"name": "job", "scenario": {}, "metrics": "x"}


@pytest.mark.parametrize(
    ("given", "field", "says"),
    [
        ({}, "workloads", "Field required"),
        ({"workloads": []}, "workloads", "at least 1"),
        ({"workloads": [{**JOB, "name": "../x"}]}, "workloads[0].name", "match"),
        ({"workloads": [{**JOB, "scenario": 3}]}, "workloads[0].scenario", "valid"),
        ({"workloads": [{**JOB, "metrics": None}]}, "workloads[0]", "one of traces, metrics, uploads"),
        ({"workloads": [{**JOB, "traces": "y"}]}, "workloads[0]", "one of traces, metrics, uploads"),
        ({"workloads": [JOB, {**JOB}]}, "body", "job is listed twice"),
        ({"workloads": [{**JOB, "hours_per_day": 25}]}, "workloads[0].hours_per_day", "24"),
        ({"workloads": [JOB], "gain": 0.9}, "gain", "1"),
        ({"workloads": [JOB], "mode": "guess"}, "mode", "advise"),
        ({"workloads": [JOB], "recipients": {"emails": ["a b@c"]}}, "recipients.emails[0]", "match"),
        ({"workloads": [JOB], "recipients": {"emails": ["a@b\nBcc: x@y"]}}, "recipients.emails[0]", "match"),
        ({"workloads": [JOB], "budgets": {}}, "budgets", "not permitted"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, Any], field: str, says: str) -> None:
    with pytest.raises(InputError) as refused:
        parse(Policy, given)
    assert refused.value.field == field
    assert says in refused.value.allowed


def test_an_address_that_may_hold_a_token_is_not_repeated() -> None:
    with pytest.raises(InputError) as refused:
        parse(Policy, {"workloads": [JOB], "recipients": {"slack": ["https://hooks/" + "secret" * 400]}})
    assert "secret" not in str(refused.value)


@given(st.recursive(st.none() | st.integers() | st.text(max_size=4), lambda x: st.lists(x, max_size=2)))
def test_any_workloads_are_taken_or_refused(content: object) -> None:
    with pytest.raises(InputError):
        parse(Policy, {"workloads": content})


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
    ("text", "says"),
    [
        ("workloads: [", "must be YAML"),
        ("- a list", "must hold workloads"),
        ("gain: 1.1\ngain: 1.2", "gain is listed twice"),
        ("{[a]: b}", "must be YAML"),
        ("? {a: b}\n: c", "must be YAML"),
        ("!!python/object/apply:os.system [exit]", "must be YAML"),
        ("1: 2", "must hold workloads"),
        ("", "must hold workloads"),
        (None, r"got .*nightly\.yaml.*No such file"),
    ],
)
def test_a_file_that_is_not_a_configuration_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, says: str
) -> None:
    monkeypatch.chdir(tmp_path)  # long paths are shortened in messages
    if text is not None:
        Path("nightly.yaml").write_text(text)
    with pytest.raises(InputError, match=says) as refused:
        load_config(Path("nightly.yaml"))
    assert refused.value.field == "--config"


def test_a_key_that_a_merge_brings_along_may_be_given_anew(tmp_path: Path) -> None:
    path = tmp_path / "nightly.yaml"
    path.write_text("base: &b {x: 1}\nlist:\n  - &a {<<: *b, x: 2}\nlast: {<<: *a}\n")
    assert load_yaml(path)["last"] == {"x": 2}


def test_check_reads_the_newest_night_and_stores_nothing(tmp_path: Path) -> None:
    base = tmp_path / "runs[1]"  # a folder, although it looks like a pattern
    add_nights(base / "job", range(3))
    check = check_workload(parse(Workload, workload()), base)
    assert (check.reason, Path(check.newest or "").name) == (None, "002.json")
    assert check.step_time_s == pytest.approx(2.0, rel=0.02)
    assert [path.name for path in base.iterdir()] == ["job"]


def test_a_report_folder_is_part_of_the_file_only() -> None:
    assert parse(Config, {"workloads": [JOB], "report": "pages"}).report == Path("pages")
    with pytest.raises(InputError):
        parse(Policy, {"workloads": [JOB], "report": "pages"})
