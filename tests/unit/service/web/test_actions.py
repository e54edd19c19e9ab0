"""What people do on a session's page reaches the store as the API's calls do, and figures are answered."""

import re
from typing import Any

from service.jobs.model import COMPLETED
from tests.unit.service.db.making import list_decisions
from tests.unit.service.served import SCENARIO, Served
from tests.unit.service.web.browsing import get, post, token


def act(served: Served, path: str, **fields: str) -> int:
    return post(served, path, {"csrf": token(served), **fields}).status_code


def decisions(served: Served, id: str) -> list[dict[str, Any]]:
    with served.app.database.read() as conn:
        return list_decisions(conn, id)


def test_an_edit_brings_only_what_was_changed(served: Served, id: str, report: dict[str, Any]) -> None:
    plan = report["proposals"][0]["plan"]
    fields = {
        f"plan.{name}": str(value).lower() for name, value in plan.items() if name not in ("dp", "schedule")
    }
    changed = {**fields, "plan.micro_batch_size": "2", "plan.recompute": "full"}
    assert act(served, f"/sessions/{id}/decision", action="edit", proposal="1", **changed) == 303
    assert decisions(served, id)[0]["plan"] == {"micro_batch_size": 2, "recompute": "full"}


SENSELESS: list[dict[str, str]] = [
    {},
    {"action": "maybe"},
    {"action": "approve", "proposal": "9"},
    {"action": "approve", "proposal": "9" * 5000},
    {"action": "edit", "proposal": "1"},
    {"action": "edit", "proposal": "1", "plan.tp": "two"},
    {"action": "edit", "proposal": "1", "plan.nothing": "1"},
]


def test_a_decision_without_sense_is_refused_and_changes_nothing(served: Served, id: str) -> None:
    for fields in SENSELESS:
        assert act(served, f"/sessions/{id}/decision", **fields) == 422, fields
    assert decisions(served, id) == []


def test_figures_of_plans_are_answered_the_space_from_what_the_search_kept(served: Served, id: str) -> None:
    assert served.client.get(f"/sessions/{id}/figures/space").status_code == 404
    served.keep_plans(id)
    for name in ("space", "roofline", "collectives", "mesh"):
        for plan in ("today", "1"):
            answer = served.client.get(f"/sessions/{id}/figures/{name}", params={"plan": plan, "by": "dp"})
            assert answer.status_code == 200, answer.text
            assert answer.json()["layers"]
            assert "NaN" not in answer.text
    drawn = served.client.get(f"/sessions/{id}/figures/space").json()
    assert len(next(trace["x"] for trace in drawn["layers"] if trace["name"] == "plans")) > 1


def test_a_proposal_is_downloaded_as_a_configuration_and_a_report_as_markdown(
    served: Served, id: str
) -> None:
    export = served.client.get(f"/sessions/{id}/proposals/1/export?format=megatron")
    assert export.headers["content-disposition"].startswith("attachment")
    assert "--tensor-model-parallel-size" in export.text
    report, _ = get(served, f"/sessions/{id}/report.md")
    assert report.headers["content-type"].startswith("text/markdown")
    assert report.text.startswith("# ")


def test_memory_is_a_share_of_the_device_that_the_plan_runs_on(
    served: Served, id: str, report: dict[str, Any]
) -> None:
    """Not of the larger device of the other session."""
    large = served.submit({**SCENARIO, "cluster": {**SCENARIO["cluster"], "device": "b200"}})
    served.end(large, COMPLETED, report=report, verdict="v")

    def shares(page: str) -> list[str]:
        return re.findall(r"<small>([\d.]+%) of the device</small>", page)

    alone = shares(get(served, f"/compare?a={id}&b={id}")[0].text)
    both = shares(get(served, f"/compare?a={id}&b={large}")[0].text)
    assert both[0] == alone[0]
    assert float(both[1].rstrip("%")) < float(both[0].rstrip("%"))


def test_only_what_differs_among_up_to_five_plans_is_shown(
    served: Served, id: str, report: dict[str, Any]
) -> None:
    second = served.submit()
    served.end(second, COMPLETED, report=report, verdict="v")
    chosen = "&".join(f"s={of}&p={plan}" for of, plan in ((id, "1"), (id, "today"), (second, "1")))
    answer, page = get(served, f"/compare?{chosen}")
    assert answer.status_code == 200
    assert "What differs in the plans" in page.text
    assert "against A" in page.text
    assert "What else differs" not in page.text
    pair = get(served, f"/compare?a={id}&b={id}&b_plan=today")[1].text
    assert "the tokens per second and device of A" in pair
    many = "&".join(f"s={id}" for _ in range(6))
    assert "the first five are compared" in get(served, f"/compare?{many}")[1].text


def test_tags_and_notes_are_edited_found_and_refused_with_what_was_typed(served: Served, id: str) -> None:
    path = f"/sessions/{id}/notes"
    sent = {"labels": "team=speech, night", "remark": "Zanzibar was slower", "csrf": token(served, path)}
    assert post(served, path, sent).status_code == 303
    assert served.client.get(f"/v1/sessions/{id}").json()["labels"] == {"team": "speech", "night": ""}
    for words in ("zanzibar", "speech", id[:12]):
        assert f"/sessions/{id}" in get(served, f"/?q={words}")[1].links()
    assert f"/sessions/{id}" in get(served, "/?label=team%3Dspeech")[1].links()
    wrong = post(served, path, {**sent, "labels": "sp ace=1"})
    assert wrong.status_code == 422
    assert "Zanzibar was slower" in wrong.text


def test_the_list_is_sorted_paged_and_shows_the_columns_that_were_chosen(served: Served) -> None:
    for number in (8, 32, 16):
        served.client.post(
            "/v1/sessions",
            json={**SCENARIO, "plan": None, "cluster": {"device": "h100", "num_devices": number}},
        )
    text = get(served, "/?sort=-num_devices")[1].text
    assert text.index("32 ×") < text.index("16 ×") < text.index("8 ×")
    text = get(served, "/?sort=num_devices")[1].text
    assert text.index("8 ×") < text.index("16 ×") < text.index("32 ×")
    assert get(served, "/?sort=colour")[0].status_code == 422
    answer, page = get(served, "/?c=id&c=owner&c=nothing")
    assert [one for one in page.all("th") if one.get("aria-sort")]
    assert "asap_columns=owner.id" in answer.headers["set-cookie"]
    heads = answer.text.partition("<thead>")[2].partition("</thead>")[0]
    assert "Limited by" not in heads
    assert "Owner" in heads


def test_what_a_session_does_not_have_is_not_found(served: Served, id: str) -> None:
    for name in ("ranks", "timeline", "lateness", "measured-roofline", "measured-collectives"):
        assert served.client.get(f"/sessions/{id}/figures/{name}").status_code == 404, name
    for path in ("figures/nothing", "figures/mesh?plan=9", "trail/99", "trail/0", "proposals/9/export"):
        assert get(served, f"/sessions/{id}/{path}")[0].status_code in (404, 422), path
