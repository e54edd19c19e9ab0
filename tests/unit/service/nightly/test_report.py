"""Pages, Markdown and messages: complete, and safe whatever the names are."""

import json
import math
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.db.engine import open_database
from service.nightly.report import (
    chat_message,
    html_overview,
    html_workload,
    markdown_overview,
    markdown_workload,
    page_name,
    write_report,
)
from service.nightly.review import run_night
from service.render.nightly import span
from service.render.trends import _Frame, _steps, _ticks, plots_of, spark_points
from service.settings import Settings
from tests.unit.service.nightly.builders import Nights, add_night, add_nights, policy, workload
from tests.unit.service.web.browsing import Page
from tools.nightly.result import NightReport

HOSTILE = "</title><script>alert(1)</script>\"'<img src=x onerror=y>|`&<!here>"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> NightReport:
    """One workload that got slower with hostile names about, one quiet, one broken."""
    base = tmp_path_factory.mktemp("report")
    with closing(open_database(Settings(data_dir=base / "data", _env_file=None).database)) as database:
        database.upgrade()
        terms = {"compute": 1.2, HOSTILE: 0.8}
        add_nights(base / "slow", range(20), versions={"torch": "2.12"}, breakdown_s=terms)
        add_night(base / "slow", 20, 2.5, versions={"torch": HOSTILE}, breakdown_s={**terms, HOSTILE: 1.3})
        add_nights(base / "quiet", range(20))
        slow = workload("slow")
        slow["scenario"]["model"]["name"] = HOSTILE
        watched = policy(workload("quiet"), workload("broken"), slow, reoptimize=True, gain=1.01)
        return run_night(Nights(database, base).context, watched, f"Night {HOSTILE}")


def test_what_got_slower_comes_first_then_what_could_not_be_read(report: NightReport) -> None:
    statuses = [(result.name, result.status) for result in report.workloads]
    assert statuses == [("slow", "regressed"), ("broken", "broken"), ("quiet", "quiet")]
    assert report.outcome == "regression"
    assert report.summary.startswith("3 workloads: 1 got slower, 1 could not be read, 1 quiet")


def test_the_overview_has_a_row_per_workload_and_what_to_do(report: NightReport) -> None:
    page = Page(html_overview(report, lambda name: f"workloads/{name}.html"))
    text = " ".join(page.words)
    assert len(page.all("tr")) == 1 + 3
    assert "2.00 to 2.51 s (+25" in text
    assert "Revert the software and rerun" in text
    assert page.all("a")[0]["href"] == "workloads/slow.html"


def test_no_name_becomes_markup_and_pages_load_nothing(report: NightReport) -> None:
    pages = [html_workload(result, report.at, report.title) for result in report.workloads]
    for page in map(Page, [html_overview(report), *pages]):
        attributes = {name for _, attrs in page.elements for name in attrs}
        assert not page.all("script") + page.all("img")
        assert not [name for name in attributes if name.startswith("on")]
        assert not attributes & {"src", "href", "action", "style"}
        (policy,) = (attrs["content"] for attrs in page.all("meta") if "http-equiv" in attrs)
        assert str(policy).startswith("default-src 'none'; style-src 'sha256-")
    assert "alert(1)" in " ".join(Page(html_overview(report)).words)


def test_a_workloads_page_draws_every_night_and_marks_the_change_and_the_last(report: NightReport) -> None:
    plots = plots_of(report.workloads[0])
    assert [plot.id for plot in plots] == ["step_time_s", "terms", "mfu"]
    assert len(plots[0].dots) == 21
    assert [mark.position for mark in plots[0].marks] == [plots[0].dots[20].x]
    assert len(plots[0].lines) == 2  # a level before the step, and one after
    assert all(0 <= dot.y <= 190 and 0 <= dot.x <= 720 for plot in plots for dot in plot.dots)
    dots = Page(html_workload(report.workloads[0], report.at, report.title)).all("circle")
    assert [dot.get("class") for dot in dots[:21]] == ["night"] * 20 + ["night last"]


def test_a_workload_without_nights_has_a_page_too(report: NightReport) -> None:
    broken = report.workloads[1]
    assert plots_of(broken) == []
    assert "matches nothing" in html_workload(broken, report.at, report.title)


def test_markdown_keeps_its_table_whatever_the_names_are(report: NightReport) -> None:
    text = markdown_overview(report)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 3
    assert {row.count("|") - row.count("\\|") for row in rows} == {8}
    for page in (text, markdown_workload(report.workloads[0], report.at)):
        assert "script" in page  # the names are there
        assert "<script>" not in page


def test_a_chat_message_mentions_nobody_and_fits(report: NightReport) -> None:
    message = json.loads(chat_message(report, "https://asap.example/nights/1"))
    texts = [block["text"]["text"] for block in message["blocks"]]
    assert texts[-1] == "<https://asap.example/nights/1|The whole report>"
    assert "!here" in message["text"] + "".join(texts)
    assert not any("<!here>" in text or "<img" in text for text in [message["text"], *texts])
    assert any("*slow*: got slower" in text for text in texts)
    many = report.model_copy(update={"workloads": report.workloads * 40})
    blocks = json.loads(chat_message(many))["blocks"]
    assert len(message["blocks"]) < len(blocks) <= 50
    assert all(len(block["text"]["text"]) <= 3000 for block in blocks)


def test_a_range_is_written_in_one_unit_with_the_same_decimals() -> None:
    assert span("terms_s.dp_comm_exposed", 0.6, 1.5) == "0.60 to 1.50 s"
    assert span("step_time_s", 0.0469, 0.2) == "47 to 200 ms"
    assert span("mfu", 0.4, 0.381) == "40.0% to 38.1%"
    assert span("peak_memory_bytes", 2.0**30, 3 * 2.0**30) == "1.0 GiB to 3.0 GiB"


def test_files_are_replaced_and_others_left_alone(report: NightReport, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    for _ in range(2):
        assert write_report(report, tmp_path) == tmp_path / "index.html"
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    pages = [f"workloads/{name}.{form}" for name in ("broken", "quiet", "slow") for form in ("html", "md")]
    assert files == ["index.html", "mine.txt", "report.json", "report.md", *pages]
    assert json.loads((tmp_path / "report.json").read_text())["outcome"] == "regression"


def test_a_page_name_is_one_file_in_the_folder() -> None:
    assert page_name("../../etc/passwd") == "_.._etc_passwd"
    assert page_name("..") == "_"


def test_a_sparkline_stays_in_its_frame() -> None:
    assert spark_points([]) == ""
    assert spark_points([2.0]) == "0.0,23.0"
    assert spark_points([1.0, 2.0]) == "0.0,23.0 100.0,1.0"


@given(st.floats(1e-3, 1e12), st.floats(1e-3, 1.0), st.sampled_from([1.0, 2.0**30]))
def test_the_ticks_of_a_plot_are_round_few_and_inside(low: float, span: float, unit: float) -> None:
    frame = _Frame(10, low, low * (1 + span))
    ticks = _steps(frame, unit)
    assert 2 <= len(ticks) <= 7
    assert all(frame.low <= tick * (1 + 1e-9) and tick <= frame.high * (1 + 1e-9) for tick in ticks)
    step = (ticks[1] - ticks[0]) / unit
    assert round(step / 10 ** math.floor(math.log10(step) + 1e-9)) in (1, 2, 5)


@pytest.mark.parametrize("name", ["mfu", "rank_spread_ratio", "peak_memory_bytes", "step_time_s"])
@given(low=st.floats(0.0, 100.0), span=st.floats(1e-3, 100.0))
def test_no_two_ticks_of_a_plot_read_the_same(name: str, low: float, span: float) -> None:
    unit = 2.0**30 if name == "peak_memory_bytes" else 1.0
    texts = [tick.text for tick in _ticks(name, _Frame(10, low * unit, (low + span) * unit))]
    assert len(set(texts)) == len(texts) >= 2
    assert all(len(text) <= 12 for text in texts)  # room at the left of a plot
