from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.nightly.config import Config, Policy, Workload, check_modes, load_config, load_yaml, parse
from service.nightly.ingest import check_workload
from tests.unit.service.nightly.builders import EXAMPLES, add_nights, workload
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


def test_tuning_and_waiting_are_refused_where_they_cannot_be() -> None:
    tuning, asking = (
        parse(Policy, {"workloads": [workload()], "mode": mode, "approval": approval})
        for mode, approval in (("tune", "none"), ("advise", "person"))
    )
    check_modes(tuning, may_tune=True, may_wait=False)
    check_modes(asking, may_tune=False, may_wait=True)
    with pytest.raises(InputError, match="ASAP_LAUNCH_TEMPLATES"):
        check_modes(tuning, may_tune=False, may_wait=True)
    with pytest.raises(InputError, match="asap serve"):
        check_modes(asking, may_tune=True, may_wait=False)


def test_the_example_is_a_configuration_whose_workloads_can_be_read() -> None:
    config = load_config(EXAMPLES / "nightly.yaml")
    assert [check_workload(one, EXAMPLES).reason for one in config.workloads] == [None]


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
    ],
)
def test_a_file_that_is_no_configuration_says_why(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "nightly.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=says) as refused:
        load_config(path)
    assert refused.value.field == "--config"


def test_a_key_that_a_merge_brings_along_may_be_given_anew(tmp_path: Path) -> None:
    path = tmp_path / "nightly.yaml"
    path.write_text("base: &b {x: 1}\nlist:\n  - &a {<<: *b, x: 2}\nlast: {<<: *a}\n")
    assert load_yaml(path)["last"] == {"x": 2}


def test_an_absent_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # long paths are shortened in messages
    with pytest.raises(InputError, match=r"--config: got .*absent\.yaml"):
        load_config(Path("absent.yaml"))


def test_check_reads_the_newest_night_and_keeps_nothing(tmp_path: Path) -> None:
    add_nights(tmp_path / "job", range(3))
    found = check_workload(parse(Workload, workload()), tmp_path)
    assert Path(found.newest or "").name == "002.json"
    assert found.step_time_s == pytest.approx(2.0, rel=0.02)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job"]


def test_a_folder_whose_name_looks_like_a_pattern_is_a_folder(tmp_path: Path) -> None:
    add_nights(tmp_path / "runs[1]" / "job", range(3))
    assert check_workload(parse(Workload, workload()), tmp_path / "runs[1]").reason is None


def test_a_report_folder_is_part_of_the_file_only() -> None:
    assert parse(Config, {"workloads": [JOB], "report": "pages"}).report == Path("pages")
    with pytest.raises(InputError):
        parse(Policy, {"workloads": [JOB], "report": "pages"})
