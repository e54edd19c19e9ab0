"""The session page: its name, its decision, the loss waterfall, cards with roles."""

import gzip
from typing import Any

import pytest

from service.db.models import COMPLETED, FAILED
from service.render.bars import loss_seconds, waterfall_of
from service.render.view import View
from service.web.session_view import tiles_of
from tests.unit.service.render import scenes
from tests.unit.service.served import SCENARIO, Served
from tests.unit.service.web.browsing import get, post, token
from tools.search.ranked import unpack


@pytest.fixture(scope="module")
def view() -> View:
    return scenes.view_of(scenes.SMALL, scenes.session(scenes.SMALL))


def test_the_losses_of_every_plan_add_up_to_its_step(view: View) -> None:
    for plan in view.plans:
        lost = loss_seconds(view, plan)
        assert sum(lost.values()) == pytest.approx(plan.prediction.step_time_s)
        assert all(value >= 0 for value in lost.values()), lost


def test_each_loss_begins_where_the_one_before_ends(view: View) -> None:
    falls = waterfall_of(view)
    ends = [loss.x + loss.width for loss in falls.losses]
    for before, loss in zip(ends, falls.losses[1:], strict=False):
        assert loss.x == pytest.approx(before, abs=2.0)  # between them only what is too small to be seen
    assert ends[-1] == pytest.approx(falls.total.width, abs=2.0)


def test_recomputation_names_the_proposal_that_removes_it(view: View) -> None:
    recomputed = next(loss for loss in waterfall_of(view).losses if loss.key == "recompute")
    assert recomputed.saving is not None
    rank = recomputed.saving.rank
    assert view.proposals[rank - 1].plan.recompute != "full"
    assert "recompute full" in recomputed.saving.changes


def test_tiles_show_the_measured_step_beside_the_predicted_one() -> None:
    report = scenes.session(scenes.SMALL)
    predicted = tiles_of(scenes.view_of(scenes.SMALL, report))[0]
    assert predicted.value.endswith("predicted")
    measured = {"measured_s": 0.5, "model_s": 0.4, "calibrated_s": 0.5, "says": "calibrated"}
    report["diagnosis"]["recalibrated"] = measured
    tile = tiles_of(scenes.view_of(scenes.SMALL, report))[0]
    assert (tile.name, tile.value) == ("step time today", "500 ms measured")
    assert "predicted" in tile.aside


def test_a_session_is_named_renamed_and_unnamed(served: Served, report: dict[str, Any]) -> None:
    id = served.submit()
    served.end(id, COMPLETED, report=report, verdict="v")
    for name, shown in (("  Before the\tswitch ", "Before the switch"), ("", "tiny on 8 x h100-sxm-80gb")):
        fields = {"csrf": token(served, f"/sessions/{id}"), "name": name}
        assert post(served, f"/sessions/{id}/name", fields).status_code == 303
        assert f"<h1>{shown}</h1>" in get(served, f"/sessions/{id}")[0].text
    assert served.client.get(f"/v1/sessions/{id}").json()["name"] is None
    too_long = {"csrf": token(served, f"/sessions/{id}"), "name": "n" * 121}
    assert post(served, f"/sessions/{id}/name", too_long).status_code == 422


def test_cards_say_their_role_and_how_likely_they_fit(served: Served, report: dict[str, Any]) -> None:
    id = served.submit()
    served.end(id, COMPLETED, report=report, verdict="v")
    text = get(served, f"/sessions/{id}")[1].text
    for proposal in report["proposals"]:
        assert proposal["role"] in text
        assert f"{proposal['prediction']['fit_probability']:.0%} likely to fit" in text


def test_the_schedule_page_says_that_it_is_simulated_and_how_it_agrees(
    served: Served, report: dict[str, Any]
) -> None:
    id = served.submit()
    assert get(served, f"/sessions/{id}/schedule")[0].status_code == 409
    served.end(id, COMPLETED, report=report, verdict="v")
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
    served: Served, report: dict[str, Any]
) -> None:
    id = served.submit()
    served.end(id, COMPLETED, report=report, verdict="v")
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
