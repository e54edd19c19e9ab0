"""`asap nightly` as cron calls it: what it prints, what it leaves, with which status it ends."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.cli.main import main
from service.settings import load_settings
from tests.unit.service.nightly.builders import add_night, add_nights, workload


@pytest.fixture(autouse=True)
def _own_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: ANN401 - a generator
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ASAP_DATA_DIR", str(tmp_path / "data"))
    load_settings.cache_clear()
    yield
    load_settings.cache_clear()


def write(folder: Path, *workloads: dict[str, Any], **options: Any) -> str:  # noqa: ANN401 - of the file
    path = folder / "nightly.yaml"
    path.write_text(yaml.safe_dump({"workloads": list(workloads), "reoptimize": False, **options}))
    return str(path)


def run(path: str, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    status = main(["nightly", "run", "--config", path, "--json", *words])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    return status, json.loads(lines[0])


def test_the_status_says_what_the_night_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, workload())
    add_nights(tmp_path / "job", range(20), data="d1")
    assert run(path, capsys)[0] == 0
    add_night(tmp_path / "job", 20, 2.5, data="d2")
    status, report = run(path, capsys)
    assert (status, report["outcome"]) == (4, "regression")
    assert Path(report["page"]).is_file()
    assert run(path, capsys)[0] == 0  # nothing new: nobody is told again


def test_a_workload_that_cannot_be_read_gives_one_and_a_regression_outweighs_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, workload(), workload("broken"))
    add_nights(tmp_path / "job", range(20), data="d1")
    status, report = run(path, capsys)
    assert (status, report["outcome"]) == (1, "broken")
    add_night(tmp_path / "job", 20, 2.5, data="d2")
    assert run(path, capsys)[0] == 4


def test_somebody_who_could_not_be_told_gives_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, workload(), recipients={"emails": ["anna@team.example"]})
    add_nights(tmp_path / "job", range(3))
    status, report = run(path, capsys)
    assert status == 1
    assert "ASAP_SMTP_HOST" in report["deliveries"][0]["answer"]
    assert run(path, capsys, "--no-deliver")[0] == 0


def test_a_wrong_file_gives_two_and_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for given in ({"gain": 0}, {"mode": "tune"}, {"approval": "person"}):
        assert main(["nightly", "run", "--config", write(tmp_path, workload(), **given)]) == 2
        errors = capsys.readouterr().err.splitlines()
        assert len(errors) == 1
        assert next(iter(given)) in errors[0]


def test_pages_lie_where_they_are_wanted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_nights(tmp_path / "job", range(3))
    assert run(write(tmp_path, workload()), capsys)[1]["page"].startswith(str(tmp_path / "data/reports/20"))
    configured = run(write(tmp_path, workload(), report="www"), capsys)[1]["page"]
    named = run(write(tmp_path, workload()), capsys, "--out", str(tmp_path / "here"))[1]["page"]
    assert (configured, named) == (str(tmp_path / "www/index.html"), str(tmp_path / "here/index.html"))


def test_people_read_markdown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_nights(tmp_path / "job", range(3))
    assert main(["nightly", "run", "--config", write(tmp_path, workload())]) == 0
    captured = capsys.readouterr()
    assert "| job | learning | 2.01 s |" in captured.out
    assert "asap: job: learning" in captured.err


def test_check_says_what_it_finds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_nights(tmp_path / "job", range(3))
    path = write(tmp_path, workload(), workload("broken"))
    assert main(["nightly", "check", "--config", path]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("002.json")
    assert "matches nothing" in lines[1]
    assert not (tmp_path / "data").exists()


def test_two_runs_at_once_do_not_tell_everybody_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import fcntl

    add_nights(tmp_path / "job", range(3))
    path = write(tmp_path, workload())
    (tmp_path / "data").mkdir()
    with (tmp_path / "data/nightly.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert main(["nightly", "run", "--config", path]) == 1
    assert "in progress" in capsys.readouterr().err


def test_the_agents_look_for_a_faster_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow = workload()
    slow["scenario"]["plan"]["recompute"] = "full"
    add_nights(tmp_path / "job", range(3))
    path = write(tmp_path, slow, reoptimize=True, gain=1.02)
    _, report = run(path, capsys)
    (said,) = report["workloads"]
    assert said["reoptimized"]["failure"] is None
    assert said["proposal"]["plan"]["recompute"] != "full"
    assert said["gained_device_hours_per_day"] > 0
