"""What people do on a session's page reaches the store as the API's calls do, and figures are answered."""

import json
import re
from typing import Any

import pytest
from pydantic import JsonValue

from service.db.models import CANCELLED, COMPLETED, FAILED
from service.web.session_figures import FIGURES
from tests.unit.kb.samples import MemoryStore
from tests.unit.service.db.making import list_decisions
from tests.unit.service.served import SCENARIO, Served
from tests.unit.service.web.browsing import get, post, token
from tools.kb import KnowledgeBase
from tools.kb.seed import load_seed


@pytest.fixture
def id(served: Served, report: dict[str, Any]) -> str:
    """A session that is done."""
    made = served.submit()
    served.end(made, COMPLETED, report=report, verdict=report["verdict"])
    return made


def act(served: Served, path: str, **fields: str) -> int:
    return post(served, path, {"csrf": token(served), **fields}).status_code


def decisions(served: Served, id: str) -> list[dict[str, Any]]:
    with served.app.database.read() as conn:
        return list_decisions(conn, id)


@pytest.mark.parametrize("action", ["approve", "reject"])
def test_a_proposal_is_decided_upon_by_its_rank(served: Served, id: str, action: str) -> None:
    assert act(served, f"/sessions/{id}/decision", action=action, proposal="2", comment="seen") == 303
    (made,) = decisions(served, id)
    assert (made["action"], made["proposal"], made["comment"], made["by"]) == (action, 2, "seen", "local")
    assert served.state(id) == "queued"


def test_the_same_form_sent_twice_decides_once(served: Served, id: str) -> None:
    for _ in range(2):
        assert act(served, f"/sessions/{id}/decision", action="approve", proposal="1", id="mine") == 303
    assert len(decisions(served, id)) == 1


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


def test_a_session_is_cancelled_run_again_and_deleted(served: Served) -> None:
    id = served.submit()
    assert act(served, f"/sessions/{id}/cancel") == 303
    assert served.state(id) == CANCELLED
    assert act(served, f"/sessions/{id}/retry") == 303
    assert served.state(id) == "queued"
    assert act(served, f"/sessions/{id}/delete") == 409
    served.end(id, FAILED, error={"kind": "failed", "message": "m", "field": None})
    assert act(served, f"/sessions/{id}/delete") == 303
    assert get(served, f"/sessions/{id}")[0].status_code == 404


def test_figures_of_plans_are_answered(served: Served, id: str) -> None:
    served.keep_plans(id)
    for name in ("space", "roofline", "collectives", "mesh"):
        for plan in ("today", "1"):
            answer = served.client.get(f"/sessions/{id}/figures/{name}", params={"plan": plan, "by": "dp"})
            assert answer.status_code == 200, answer.text
            assert answer.json()["data"]
            assert "NaN" not in answer.text


def test_the_space_is_drawn_from_what_the_search_kept(served: Served, id: str) -> None:
    assert served.client.get(f"/sessions/{id}/figures/space").status_code == 404
    served.keep_plans(id)
    drawn = served.client.get(f"/sessions/{id}/figures/space").json()
    assert len(next(trace["x"] for trace in drawn["data"] if trace["name"] == "plans")) > 1


def test_a_figure_before_there_is_a_report_says_so(served: Served) -> None:
    id = served.submit()
    for name in FIGURES:
        answer = served.client.get(f"/sessions/{id}/figures/{name}")
        assert answer.status_code == 409
        assert "nothing to draw yet" in answer.json()["detail"]


def test_what_a_session_does_not_have_is_not_found(served: Served, id: str) -> None:
    for name in ("ranks", "timeline", "lateness", "measured-roofline", "measured-collectives"):
        assert served.client.get(f"/sessions/{id}/figures/{name}").status_code == 404, name
    for path in ("figures/nothing", "figures/mesh?plan=9", "trail/99", "trail/0", "proposals/9/export"):
        assert get(served, f"/sessions/{id}/{path}")[0].status_code in (404, 422), path


def test_a_proposal_is_downloaded_as_a_configuration_and_a_report_as_markdown(
    served: Served, id: str
) -> None:
    export = served.client.get(f"/sessions/{id}/proposals/1/export?format=megatron")
    assert export.headers["content-disposition"].startswith("attachment")
    assert "--tensor-model-parallel-size" in export.text
    report, _ = get(served, f"/sessions/{id}/report.md")
    assert report.headers["content-type"].startswith("text/markdown")
    assert report.text.startswith("# ")


def test_plans_of_one_session_are_compared(served: Served, id: str) -> None:
    answer, page = get(served, f"/compare?a={id}&b={id}&b_plan=today")
    assert answer.status_code == 200
    assert "the tokens per second and device of A" in page.text
    assert "What else differs" not in page.text


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


def test_other_training_is_called_incomparable(served: Served, id: str, report: dict[str, Any]) -> None:
    other = served.submit({**SCENARIO, "training": {**SCENARIO["training"], "seq_len": 4096}})
    served.end(other, COMPLETED, report=report, verdict="v")
    _, page = get(served, f"/compare?s={id}&s={other}")
    assert "Not comparable" in page.text
    assert "training.seq_len" in page.text


def test_what_if_starts_from_any_plan_of_a_session(served: Served, id: str) -> None:
    for plan in ("today", "1"):
        answer, page = get(served, f"/what-if?session={id}&plan={plan}&inter=2")
        assert answer.status_code == 200
        assert "step time" in page.text
    assert get(served, f"/what-if?session={id}&plan=9")[0].status_code == 404


def test_a_case_is_marked_and_its_history_shown(served: Served) -> None:
    served.app.knowledge._opened = KnowledgeBase(load_seed(), MemoryStore())
    case = {"id": "own", "title": "Ours", "story": "We tried.", "status": "hypothesis"}
    assert served.client.post("/v1/knowledge", json=case).status_code == 201
    assert act(served, "/knowledge/own/mark", status="refuted", reason="slower here") == 303
    _, page = get(served, "/knowledge/own")
    assert "Slower here." in page.text
    assert "A measurement contradicts this" in page.text


def test_a_mark_needs_a_status_and_a_reason(served: Served) -> None:
    entry = served.client.get("/v1/knowledge", params={"kind": "case"}).json()["items"][0]["id"]
    assert act(served, f"/knowledge/{entry}/mark", status="refuted") == 422
    assert act(served, f"/knowledge/{entry}/mark", status="maybe", reason="x") == 422


def test_knowledge_is_found_by_words_and_read(served: Served) -> None:
    answer, page = get(served, "/knowledge?q=pipeline+bubble&kind=playbook")
    assert answer.status_code == 200
    address = next(link for link in page.links() if link.startswith("/knowledge/"))
    entry, text = get(served, address)
    assert entry.status_code == 200
    assert "What to do" in text.text
    assert "Sources" in text.text
    for address in ("/knowledge?kind=other", "/knowledge?q=bubble&kind=other"):
        assert get(served, address)[0].status_code == 422


def test_an_event_is_shown_whole_and_its_strings_stay_text(served: Served) -> None:
    from tests.unit.service.db.making import append_event

    id = served.submit()
    call: dict[str, JsonValue] = {
        "tool": "read_traces",
        "arguments": {"kernel": "<script>alert(1)</script>"},
        "result": ["a"],
    }
    event = {"key": "1/1/analyzer/1", "node": "analyzer", "kind": "tool", "seconds": 1.0, **call}
    with served.app.database.begin() as conn:
        append_event(conn, id, event)
    answer, page = get(served, f"/sessions/{id}/trail/2")
    assert "<script>alert" not in answer.text
    assert json.dumps("<script>alert(1)</script>")[1:-1] in page.text.replace("\\", "")
    _, trail = get(served, f"/sessions/{id}/trail")
    assert "read traces" in trail.text
    assert f"/sessions/{id}/trail#step-2" in page.links()
    assert [element for element in trail.all("details") if element.get("id") == "step-2"]


def test_a_figure_travels_compressed_where_the_browser_takes_it(served: Served, id: str) -> None:
    path = f"/sessions/{id}/figures/mesh"
    small = served.client.get(path, headers={"Accept-Encoding": "gzip"})
    plain = served.client.get(path, headers={"Accept-Encoding": "identity"})
    assert small.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert int(small.headers["content-length"]) < int(plain.headers["content-length"])
    assert small.json() == plain.json()


def test_a_question_is_answered_on_the_page(served: Served, id: str) -> None:
    answer = post(served, f"/sessions/{id}/ask", {"csrf": token(served), "question": "why not ep 7?"})
    assert answer.status_code == 200
    assert "must be 1 for a dense model" in answer.text


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


def test_the_decision_is_in_the_list(served: Served, id: str) -> None:
    assert act(served, f"/sessions/{id}/decision", action="approve", proposal="1") == 303
    assert "approved proposal 1" in get(served, "/")[1].text
