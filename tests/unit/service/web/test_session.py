"""The session page: its name, its decision, the loss waterfall, cards with roles."""

import gzip
import re
from typing import Any

import pytest

from service.jobs.model import FAILED
from service.render.view import ReportView
from service.render.waterfall import loss_changes, loss_seconds
from tests.unit.service.render import scenes
from tests.unit.service.served import SCENARIO, Served
from tests.unit.service.web.browsing import get, post, token
from tools.search.ranked import unpack


@pytest.fixture(scope="module")
def view() -> ReportView:
    return scenes.view_of(scenes.SMALL, scenes.session(scenes.SMALL))


def test_the_losses_of_every_plan_add_up_to_its_step(view: ReportView) -> None:
    for plan in view.plans:
        lost = loss_seconds(view, plan)
        assert sum(lost.values()) == pytest.approx(plan.prediction.step_time_s)
        assert all(value >= 0 for value in lost.values()), lost


def test_recomputation_is_a_difference_that_names_the_proposal_which_removes_it(view: ReportView) -> None:
    before, after = view.plans[:2]
    row = next(row for row in loss_changes(view, before, after) if row.key == "recompute")
    assert row.saves
    assert row.before_width > row.after_width
    assert row.saving is not None
    assert view.proposals[row.saving.rank - 1].plan.recompute != "full"
    assert "recompute full" in row.saving.changes
    assert not any(same.change for same in loss_changes(view, before, before))


def test_the_schedule_page_says_that_it_is_simulated_and_how_it_agrees(
    served: Served, id: str, report: dict[str, Any]
) -> None:
    assert get(served, f"/sessions/{served.submit()}/schedule")[0].status_code == 409
    answer, page = get(served, f"/sessions/{id}/schedule?plan=2")
    assert answer.status_code == 200
    assert "Simulated schedule" in page.text
    drawn = [str(figure["data-gantt"]) for figure in page.all("figure") if figure.get("data-gantt")]
    assert drawn == [f"/sessions/{id}/schedule/today", f"/sessions/{id}/schedule/2"]
    steps = [served.client.get(address).json() for address in drawn]
    for step, prediction in zip(
        steps, (report["baseline"], report["proposals"][1]["prediction"]), strict=True
    ):
        assert step["makespan_s"] == pytest.approx(prediction["step_time_s"], rel=0.03)
        peak_gib = max(max(gib) for _, gib in step["memory"])
        assert peak_gib == pytest.approx(prediction["peak_memory_gib"], rel=0.03)
    for path in ("?plan=9", "/9", "/nothing"):
        assert get(served, f"/sessions/{id}/schedule{path}")[0].status_code == 404, path


def test_the_explorer_serves_the_kept_plans_and_says_of_each_why_it_is_not_proposed(
    served: Served, id: str
) -> None:
    assert get(served, f"/sessions/{id}/plans")[0].status_code == 404  # searched before plans were kept
    kept = served.keep_plans(id)
    answer, page = get(served, f"/sessions/{id}/plans")
    assert answer.status_code == 200
    assert f"{kept:,} timed plans" in page.text
    data = served.client.get(f"/sessions/{id}/plans/data")
    assert len(unpack(gzip.compress(data.content)).step_time_s) == kept
    answer, page = get(served, f"/sessions/{id}/plans/{kept - 1}")
    assert "Why not:" in page.text
    for link in (
        f"/what-if?session={id}&plan=p{kept - 1}",
        f"/compare?a={id}&a_plan=1&b={id}&b_plan=p{kept - 1}",
    ):
        assert link in page.links()
        answer, page_of_link = get(served, link)
        assert answer.status_code == 200
        assert f"searched plan {kept - 1}" in page_of_link.text
    exported = served.client.get(f"/sessions/{id}/plans/0/export?format=megatron")
    assert "--tensor-model-parallel-size" in exported.text
    for path in (f"plans/{kept}", "plans/nothing", f"plans/{kept}/export?format=megatron"):
        assert get(served, f"/sessions/{id}/{path}")[0].status_code in (404, 422), path
    assert get(served, f"/what-if?session={id}&plan=p{kept}")[0].status_code == 404


def test_a_session_that_nothing_fits_shows_the_smallest_plan_and_runs_with_what_would_fit(
    served: Served,
) -> None:
    small_device = {**SCENARIO["cluster"], "overrides": {"memory_gib": 2.5}}
    id = served.submit({**SCENARIO, "cluster": small_device, "plan": None, "labels": {"team": "a"}})
    assert get(served, f"/sessions/{id}/fit")[0].status_code == 409
    served.end(id, FAILED, error={"kind": "infeasible", "message": "no legal plan fits", "field": None})
    assert f"/sessions/{id}/fit" in get(served, f"/sessions/{id}")[1].links()
    answer, page = get(served, f"/sessions/{id}/fit")
    assert answer.status_code == 200
    assert "The smallest legal plan" in page.text
    names = [str(button["value"]) for button in page.all("button") if button.get("name") == "remedy"]
    assert {"devices", "device"} <= {*names}
    fields = {"csrf": token(served, f"/sessions/{id}/fit"), "remedy": "devices"}
    moved = post(served, f"/sessions/{id}/fit", fields)
    assert moved.status_code == 303
    new = served.client.get(f"/v1{moved.headers['location']}").json()
    assert new["request"]["cluster"]["num_devices"] > SCENARIO["cluster"]["num_devices"]
    assert new["labels"] == {"team": "a"}
    assert post(served, f"/sessions/{id}/fit", {**fields, "remedy": "magic"}).status_code == 404


def test_the_nearest_runs_are_listed_with_what_differs(served: Served, id: str) -> None:
    _, page = get(served, f"/sessions/{id}/near")
    assert re.search(r"The interval of the prediction is ±\d+%\..* than the formulas say", page.text)
    rows = page.text.split("differs (theirs → proposal 1)")[1]
    assert re.search(r"[\d.]+ s [\d.]+ s [+-]\d+%", rows), "measured, predicted and how far that is off"
    assert re.search(r"\S+ \S+ → \S+; \S+ \S+ → \S+", rows)
    assert not re.search(r";\S", rows)
    address = next(str(a["href"]) for a in page.all("a") if "against=" in str(a.get("href")))
    _, compared = get(served, address)
    assert re.search(r"TFLOP/s per device predicted, [\d.]+ in \S+ .*: [\d.]+ times as fast", compared.text)
    assert "left over:" in compared.text


def test_each_card_says_why_it_has_its_slot_how_robust_it_is_and_how_to_switch(
    served: Served, id: str, report: dict[str, Any]
) -> None:
    page = get(served, f"/sessions/{id}")[1].text
    shown = " ".join(page.split())
    assert report["proposals"]
    for proposal in report["proposals"]:
        assert " ".join(proposal["why"].split()) in shown
        assert proposal["two_runs"]["commands"][1] in shown
    for words in ("half the network", "fits a tenth less memory", "Today's checkpoint: "):
        assert shown.count(words) == len(report["proposals"]), words
