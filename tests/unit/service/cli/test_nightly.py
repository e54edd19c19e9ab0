"""`asap nightly` as cron calls it: what it prints, what it leaves, with which status it ends."""

import fcntl
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.service.cli.commands import Asap
from tests.unit.service.nightly.builders import add_night, add_nights, workload

pytestmark = pytest.mark.usefixtures("data_dir")


def write(folder: Path, *workloads: dict[str, Any], **options: Any) -> Path:  # noqa: ANN401 - of the file
    path = folder / "nightly.yaml"
    path.write_text(yaml.safe_dump({"workloads": list(workloads), "reoptimize": False, **options}))
    return path


def run(asap: Asap, path: Path, *words: object) -> tuple[int, dict[str, Any]]:
    result = asap("nightly", "run", "--config", path, "--json", *words)
    return result.status, result.answer


def test_the_status_says_what_the_night_was(asap: Asap, tmp_path: Path) -> None:
    path = write(tmp_path, workload())
    add_nights(tmp_path / "job", range(20), data="d1")
    assert run(asap, path)[0] == 0
    add_night(tmp_path / "job", 20, 2.5, data="d2")
    status, report = run(asap, path)
    assert (status, report["outcome"]) == (4, "regression")
    assert Path(report["page"]).is_file()
    assert run(asap, path)[0] == 0  # nothing new: nobody is told again


def test_a_workload_that_cannot_be_read_gives_one_and_a_regression_outweighs_it(
    asap: Asap, tmp_path: Path
) -> None:
    path = write(tmp_path, workload(), workload("broken"))
    add_nights(tmp_path / "job", range(20), data="d1")
    status, report = run(asap, path)
    assert (status, report["outcome"]) == (1, "broken")
    add_night(tmp_path / "job", 20, 2.5, data="d2")
    assert run(asap, path)[0] == 4


def test_somebody_who_could_not_be_told_gives_one(asap: Asap, tmp_path: Path) -> None:
    path = write(tmp_path, workload(), recipients={"emails": ["anna@team.example"]})
    add_nights(tmp_path / "job", range(3))
    status, report = run(asap, path)
    assert status == 1
    assert "ASAP_SMTP_HOST" in report["deliveries"][0]["answer"]
    assert run(asap, path, "--no-deliver")[0] == 0


@pytest.mark.parametrize("wrong", [{"gain": 0}, {"mode": "tune"}, {"approval": "person"}])
def test_a_wrong_file_gives_two_and_one_line(asap: Asap, tmp_path: Path, wrong: dict[str, Any]) -> None:
    result = asap("nightly", "run", "--config", write(tmp_path, workload(), **wrong))
    assert result.refused
    assert next(iter(wrong)) in result.err


def test_two_runs_at_once_do_not_tell_everybody_twice(asap: Asap, tmp_path: Path, data_dir: Path) -> None:
    add_nights(tmp_path / "job", range(3))
    data_dir.mkdir()
    with (data_dir / "nightly.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        result = asap("nightly", "run", "--config", write(tmp_path, workload()))
    assert (result.status, "in progress" in result.err) == (1, True)


def test_check_says_what_it_finds(asap: Asap, tmp_path: Path, data_dir: Path) -> None:
    add_nights(tmp_path / "job", range(3))
    result = asap("nightly", "check", "--config", write(tmp_path, workload(), workload("broken")))
    found, broken = result.out.splitlines()
    assert (result.status, found.endswith("002.json")) == (1, True)
    assert "matches nothing" in broken
    assert not data_dir.exists()
