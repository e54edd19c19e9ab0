"""`asap optimize`: four formats, exit statuses, one line for each mistake, and nothing left behind."""

import io
import json
from pathlib import Path

import pytest

from graph.events import NodeStarted, ToolCalled
from service.cli.optimize import watching
from tests.unit.graph.cases import Raw
from tests.unit.service.cli.commands import Asap, Result
from tests.unit.service.render import scenes

SMALL: Raw = scenes.SMALL | {"model": scenes.SMALL["model"] | {"name": "small [/bold] model"}}


pytestmark = pytest.mark.usefixtures("data_dir")


@pytest.fixture
def run(asap: Asap) -> Asap:
    def call(given: Raw | str, *options: str) -> Result:
        return asap("optimize", *options, given.encode() if isinstance(given, str) else given)

    return call


def test_json_prints_one_object_and_nothing_else_and_leaves_nothing_behind(run: Asap, data_dir: Path) -> None:
    result = run(SMALL, "--json")
    assert (result.status, result.err) == (0, "")
    report = result.answer
    assert (report["id"], report["case"]) == ("small", None)
    assert {"diagnosis", "baseline", "proposals", "rejected", "searched", "reasoner"} <= set(report)
    assert report["baseline"]["step_time_s"] >= report["proposals"][0]["prediction"]["step_time_s"]
    assert not data_dir.exists()


def test_events_are_json_lines_on_standard_error_beside_the_report(run: Asap) -> None:
    result = run(SMALL, "--json", "--events")
    events = [json.loads(line) for line in result.err.splitlines()]
    assert {"coordinator", "analyzer", "proposal", "verify", "learn", "report"} == {
        event["node"] for event in events
    }
    searched = next(event for event in events if event.get("tool") == "search_plans")
    assert searched["seconds"] > 0
    assert len({event["key"] for event in events}) == len(events)
    assert json.loads(result.out)["id"] == "small"


def test_a_named_session_is_kept_repeats_its_report_and_is_remembered(run: Asap, data_dir: Path) -> None:
    first = run(SMALL, "--json", "--session", "spring")
    assert (first.status, first.err) == (0, "")
    assert (data_dir / "checkpoints.db").is_file()
    again = run(SMALL, "--json", "--session", "spring", "--events")
    assert (again.out, again.err) == (first.out, "")
    case = json.loads(first.out)["case"]
    assert case.startswith("advice-")
    later = json.loads(run(SMALL, "--json").out)
    assert case in [past["id"] for past in later["cases"]]


def test_a_session_that_runs_elsewhere_is_not_run_twice(run: Asap, data_dir: Path) -> None:
    import fcntl

    (data_dir / "sessions").mkdir(parents=True)
    with (data_dir / "sessions" / "spring.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        result = run(SMALL, "--session", "spring")
    assert result.status == 2
    assert "is running in another process" in result.err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("tool", "shown"), [(None, "searching every legal"), ("search_plans", "looking for more")]
)
def test_a_terminal_shows_the_agent_that_works_and_the_search(tool: str | None, shown: str) -> None:
    screen = Terminal()
    with watching(screen) as watch:
        assert watch.event
        assert watch.progress
        watch.event(NodeStarted(node="proposal"))
        watch.progress(0.5)
        if tool:
            watch.event(ToolCalled(node="proposal", tool=tool))
    assert f"proposal agent: {shown} plan" in screen.getvalue()
