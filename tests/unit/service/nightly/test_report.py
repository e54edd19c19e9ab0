"""Pages, Markdown and messages: complete, and safe whatever the names are."""

import json
from contextlib import closing

import pytest

from service.db.engine import open_database
from service.render.nightly import day
from service.schedules.deliver import chat_message, make_message
from service.schedules.report import (
    html_overview,
    html_workload,
    markdown_overview,
    markdown_workload,
)
from service.schedules.review import run_night
from service.settings import Settings
from tests.unit.service.nightly.builders import Nights, add_night, add_nights, policy, workload
from tests.unit.service.web.browsing import Page
from tools.nightly.result import NightReport, report_of

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


def test_markdown_keeps_its_table_whatever_the_names_are(report: NightReport) -> None:
    text = markdown_overview(report)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 3
    assert {row.count("|") - row.count("\\|") for row in rows} == {8}
    for page in (text, markdown_workload(report.workloads[0], report.at)):
        assert "script" in page  # the names are there
        assert "<script>" not in page


def test_a_quiet_night_is_one_line_everywhere(report: NightReport) -> None:
    found = next(result for result in report.workloads if result.status == "quiet")
    assert not report_of([found], "Nightly", 0, "r1", "0.3", 0).is_uneventful, "it ran a session"
    quiet = [found.model_copy(update={"reoptimized": None})]
    night = report_of(quiet, "Nightly", report.at, "r1", "0.3", report.at)
    line = f"Nightly, {day(night.at)}: 1 workload: 1 quiet; 1 with a faster plan"
    assert markdown_overview(night).startswith(line)
    assert markdown_overview(night).count("\n") == 1
    message = json.loads(chat_message(night, "https://asap.example/nights/1"))
    assert [block["text"]["text"].count("\n") for block in message["blocks"]] == [0]
    mail = make_message("asap@example.com", "team@example.com", night, "r1")
    assert not mail.is_multipart()
    assert mail["Subject"].startswith(line)


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
