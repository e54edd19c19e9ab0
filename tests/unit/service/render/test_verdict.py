"""One verdict: over generated sessions, no page, list, export, command or report contradicts another."""

import copy
import io
import random
import re
from collections.abc import Iterator
from contextlib import redirect_stdout

import pytest
from markupsafe import escape

from graph.headline import MAX_WORDS, Gain, Headline
from graph.report import Report
from graph.rules import first_step
from graph.session import SessionOutcome
from service.cli.optimize_tables import print_tables
from service.render.report import escape_markdown, html_report, markdown_report
from service.render.view import TODAY, ReportView
from service.render.waterfall import loss_seconds
from service.sessions.pages.pipeline import LEGEND
from service.sessions.pages.trail import trail_of
from service.sessions.pages.view import SessionView, tiles_of
from service.sessions.pages.workbench import Workbench, workbench_of
from service.sessions.run import end_of
from tests.unit.graph.cases import Raw
from tests.unit.service.render import scenes
from tests.unit.service.web.drawn import completed, drawn
from tools.frameworks import EXPORT_FORMATS
from tools.recommend.losses import IDEAL
from tools.recommend.score import without_gains
from tools.scenario import RECOMPUTES

FEW, SESSIONS = 60, 300
STATES = ("as predicted", "foreign", "unfit", "lever", "today first", "cold")
DECISIONS = (None, "approve", "reject", "policy")
MEASURED = (None, "better", "worse", "alone")


def generated(count: int) -> Iterator[tuple[Raw, Raw]]:
    """Requests and reports: traces that match or not, today's plan that fits or not, decided, measured."""
    draw = random.Random(39)
    for _ in range(count):
        state, decision, measured = draw.choice(STATES), draw.choice(DECISIONS), draw.choice(MEASURED)
        request = copy.deepcopy(scenes.COLD if state == "cold" else scenes.SMALL)
        report = scenes.session(request) | {"headline": None}
        proposals, diagnosis = report["proposals"], report["diagnosis"]
        draw.shuffle(proposals)
        for rank, proposal in enumerate(proposals, start=1):
            proposal["rank"] = rank
        if state == "foreign":
            diagnosis["cause"] = "trace_mismatch"
        if state == "unfit":
            report["baseline"]["fits"], report["baseline"]["peak_memory_gib"] = False, 111.2
        if state in ("lever", "today first"):
            diagnosis["lever"] = "Sharding is not your lever: no plan beats today's. Look at kernels."
        if state == "today first":
            same = {"speedup": 1.0, "speedup_low": 1.0, "speedup_high": 1.0, "changes": [], "settings": {}}
            proposals[0] |= same | {"plan": report["baseline_plan"]["plan"], "prediction": report["baseline"]}
        if measured and state != "cold":
            gain = draw.uniform(1.1, 1.6) if measured == "better" else draw.uniform(0.5, 1.02)
            speed: Raw = {"speedup": gain, "speedup_low": gain - 0.06, "speedup_high": gain + 0.06}
            if measured == "alone":
                speed = dict.fromkeys(speed)
            proposals[0]["measured"] = {
                "step_time_s": draw.uniform(0.02, 3.0), "interval_s": [0.02, 3.0], "noise": 0.01,
                "peak_memory_gib": None, "predicted_step_time_s": 1.0, "trial": "a", **speed,
            }  # fmt: skip
        if decision:
            made = {"action": decision, "proposal": draw.randint(1, len(proposals)), "by": "ada lovelace"}
            if decision == "policy":
                made |= {"action": "approve", "by": "policy"}
            report["decisions"] = [made]
        yield request, report


def finished(request: Raw, raw: Raw, headline: Headline | None = None) -> ReportView:
    """As the last nodes of the graph leave it; `headline` takes the place of the right one."""
    report = scenes.view_of(request, raw)
    headline = headline or report.headline
    proposals = report.report.proposals
    if report.report.baseline and not headline.sells:
        proposals = without_gains(proposals)
    told = {
        "headline": headline, "verdict": headline.text, "chosen": headline.rank, "proposals": proposals,
        "first_step": first_step(headline, proposals, report.report.diagnosis, True),
    }  # fmt: skip
    whole = Report.model_validate(report.report.model_copy(update=told).model_dump(mode="json"))
    return ReportView(report.workload, whole)


def contradictions(view: ReportView) -> list[str]:
    """What two places say of one session that cannot both hold."""
    report, headline = view.report, view.headline
    columns, tiles, first = end_of(SessionOutcome(report)).columns, tiles_of(view), report.first_step
    terminal = io.StringIO()
    with redirect_stdout(terminal):
        print_tables(view)
    page, text, command = html_report(view), markdown_report(view), " ".join(terminal.getvalue().split())
    last = next((made for made in report.decisions if made.by != "policy"), None)
    approved = last.proposal if last and last.action == "approve" else None
    rejected = last is not None and last.action == "reject"
    names = " ".join(tile.name for tile in tiles)
    lost, step_s = loss_seconds(view, view.plans[0]), view.plans[0].prediction.step_time_s
    left = [loss_seconds(view, plan) for plan in view.proposals]
    removed = {key: was - min(one[key] for one in left) for key, was in lost.items() if key != IDEAL}
    worth = {key: saved for key, saved in removed.items() if saved >= max(0.005 * step_s, 0.1 * lost[key])}
    largest = max(worth or removed, key=lambda key: worth.get(key, lost[key]))
    bench = bench_of(view)
    shown = session_page(view, bench)
    plans = shown.partition('class="halves"')[0]  # what another contract would give stands below
    next_step = shown.partition('<div class="next">')[2].partition("</section>")[0]
    sold = [choice.gain for choice in bench.choices if choice.gain] + ([bench.ratio] if bench.ratio else [])
    is_against_today = TODAY in (bench.chosen.key, bench.against.key)
    named = view.role_of(bench.chosen.planned)
    best = view.counts.proposal.measured if view.counts.proposal else None
    takes = first.startswith(("Run proposal", "Switch to proposal"))
    found = {
        "more than twenty words": len(headline.text.split()) > MAX_WORDS,
        "the list has another verdict": columns["verdict"] != headline.text,
        "the page has another verdict": str(escape(headline.text)) not in page,
        "the Markdown has another verdict": escape_markdown(headline.text) not in text,
        "the command has another verdict": " ".join(headline.text.split()) not in command,
        "a tile sells what the verdict does not": ("speedup" in names) != (headline.gain is not None),
        "the list sells what the verdict does not": headline.gain is None
        and (columns["speedup"], columns["measured_speedup"]) != (None, None),
        "a gain is told without a base": not headline.sells and headline.gain is not None,
        "a card counts gains without a base": not headline.sells
        and any(proposal.speedup for proposal in report.proposals),
        "an approved proposal does not count": approved is not None and headline.rank != approved,
        "a rejected one is named": rejected and (headline.rank is not None or takes),
        "the tiles are of another plan": headline.rank is not None
        and view.plans[0].proposal is None
        and f"proposal {headline.rank}" not in names,
        "the export is of another plan": report.chosen != headline.rank,
        "the first step is of another plan": takes
        and f"proposal {headline.rank}" not in first,
        "kept and taken": "Keep" in headline.text and takes,
        "taken and kept": headline.decision == "approved" and first.startswith(("Keep", "Stay")),
        "the limit is not the largest removable loss": headline.limit.key != largest,
        "measured slower and still sold": headline.stance == "switch"
        and headline.is_measured
        and headline.decision is None
        and (best is None or (best.speedup_low or 0.0) <= 1.0),
        "the first is to be taken whatever was decided": "Take the first" in page + text + command,
        "the session's page has another verdict": str(escape(headline.text)) not in shown,
        "the workbench sells what the verdict does not": not headline.sells
        and is_against_today
        and bool(sold),
        "the session's page counts gains without a base": not headline.sells
        and is_against_today
        and re.search(r"\d\.\d\dx", plans) is not None,
        "no alarm beside traces of another job": (headline.stance == "foreign")
        != ("verdict foreign" in shown),
        "approved and still to approve": approved == bench.chosen.planned.proposal.rank
        and "Approve" in next_step
        if bench.chosen.planned.proposal
        else False,
        "recommended beside a verdict that keeps today's plan": headline.stance in ("keep", "foreign")
        and named == "recommended",
        "the first thing to click takes what the verdict keeps": headline.stance in ("keep", "foreign")
        and 'value="approve" class="button"' in next_step,
    }  # fmt: skip
    return [what for what, is_so in found.items() if is_so]


def bench_of(view: ReportView) -> Workbench:
    decided = SessionView(completed(view.report), view).decided
    return workbench_of(view, lambda key: None, {}, decided)


def session_page(view: ReportView, bench: Workbench) -> str:
    """What /sessions/{id} answers, of its own template."""
    content = {
        "session": SessionView(completed(view.report), view), "bench": bench, "decision_id": "d",
        "tab": "", "trail": trail_of([]),
        "submitted": [], "formats": EXPORT_FORMATS, "recomputes": RECOMPUTES, "trust": None,
        "answered": None, "tiles": tiles_of(view), "trial_chart": None, "legend": LEGEND,
    }  # fmt: skip
    return drawn("session", **content)


@pytest.mark.parametrize("count", [FEW, pytest.param(SESSIONS, marks=pytest.mark.slow)])
def test_no_place_contradicts_another_over_generated_sessions(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    stances, found = set[tuple[str, str | None]](), dict[str, str]()
    for request, raw in generated(count):
        view = finished(request, raw)
        stances.add((view.headline.stance, view.headline.decision))
        found |= dict.fromkeys(contradictions(view), view.headline.text)
    assert found == {}
    assert {stance for stance, _ in stances} == {"foreign", "unfit", "start", "switch", "keep"}
    assert {decision for _, decision in stances} == {None, "approved", "rejected"}


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"gain": Gain(speedup=1.39, low=1.2, high=1.6, predicted=1.39), "stance": "foreign"}, None),
        ({"rank": 3, "decision": "approved"}, "the first step is of another plan"),
        ({"text": "Take the first unless a short run says otherwise."}, "the first is to be taken"),
        ({"text": "word " * 21}, "more than twenty words"),
        ({"text": "Keep today's plan."}, "kept and taken"),
    ],
)
def test_the_check_finds_what_is_made_to_contradict(
    monkeypatch: pytest.MonkeyPatch, changed: Raw, what: str | None
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    request, raw = copy.deepcopy(scenes.SMALL), scenes.session(scenes.SMALL) | {"headline": None}
    right = finished(request, raw)
    assert contradictions(right) == []
    wrong = finished(request, raw, right.headline.model_copy(update=changed))
    if what is None or "another plan" in what:
        wrong = ReportView(right.workload, right.report.model_copy(update={"headline": wrong.headline}))
    assert contradictions(wrong) != []
