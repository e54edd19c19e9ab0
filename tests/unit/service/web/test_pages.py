"""Every page answers, says what it should, and is light."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from graph.report import Report
from graph.session import Outcome
from service.api.middleware import CONTENT_POLICY
from service.db.models import COMPLETED, FAILED, WAITING
from service.render.plotly import SCRIPT
from service.render.text import seconds
from service.render.view import view_of
from service.web.hardware import device_lines, facts_of
from service.web.rendering import all_assets
from service.web.sessions import session_list
from service.worker.run_session import end_of
from tests.unit.service.render import scenes
from tests.unit.service.served import SCENARIO, Serve, Served
from tests.unit.service.web.browsing import get
from tools.cost.calibration import ClusterCalibration
from tools.hardware import device_names, get_device

MAX_BYTES = 150_000
TEMPLATES = Path(__file__).parents[4] / "examples" / "launch-templates.toml"
STILL = (
    "/", "/what-if", "/compare", "/knowledge", "/schedules", "/fleet", "/hardware", "/accuracy", "/docs",
    "/sessions/new",
)  # fmt: skip


def done(served: Served, report: dict[str, Any]) -> str:
    id = served.submit()
    served.end(id, COMPLETED, report=report, verdict=report["verdict"], speedup=1.5, bottleneck="compute")
    return id


def waiting(
    served: Served, report: dict[str, Any], mode: str = "advise", trials: Sequence[dict[str, Any]] = ()
) -> str:
    id = served.submit({**SCENARIO, "mode": mode, "approval": "person"})
    proposals = [{"rank": p["rank"], "plan": p["plan"], "measured": None} for p in report["proposals"]]
    served.end(id, WAITING, waiting_for={"question": "which?", "proposals": proposals, "trials": [*trials]})
    return id


def test_every_page_answers_before_there_is_anything_to_show(served: Served) -> None:
    for path in STILL:
        answer, page = get(served, path)
        assert answer.status_code == 200, path
        assert len(page.all("h1")) == 1, path
        assert len(page.all("main")) == 1, path


def test_every_page_keeps_the_strict_content_policy_and_holds_no_script_or_style_of_its_own(
    served: Served,
) -> None:
    assert "unsafe" not in CONTENT_POLICY
    for path in (*STILL, "/hardware/b200", "/sessions/none", "/nowhere"):
        answer, page = get(served, path)
        assert answer.headers["content-security-policy"] == CONTENT_POLICY, path
        assert page.all("style") == [], path
        assert all(script.get("src") for script in page.all("script")), path
        assert not [attributes for _, attributes in page.elements if "style" in attributes], path


def test_a_session_shows_its_verdict_and_its_proposals_with_all_that_was_asked_for(
    served: Served, report: dict[str, Any]
) -> None:
    answer, page = get(served, f"/sessions/{done(served, report)}")
    assert answer.status_code == 200
    assert report["verdict"][:40] in page.text
    for proposal in report["proposals"]:
        assert f"plan-{proposal['rank']}" in answer.text
    for words in ("Step time", "Memory per device", "Export", "Approve", "Reject", "Diagnosis", "Evidence"):
        assert words in page.text
    _, page = get(served, f"{answer.request.url.path}/figures")
    drawn = {
        str(figure.get("data-figure")).rpartition("/")[2]
        for figure in page.all("figure")
        if figure.get("data-figure")
    }
    assert drawn == {"space", "roofline", "collectives", "mesh"}
    assert {"f-step", "f-memory"} <= {caption.get("id") for caption in page.all("figcaption")}


def trial(role: str, step_time_s: float) -> dict[str, Any]:
    ends = [step_time_s * 0.9, step_time_s * 1.1]
    return {**scenes.trial("tp 4"), "role": role, "step_time_s": step_time_s, "interval_s": ends}


def test_a_tuned_session_shows_what_was_measured_beside_what_was_predicted(
    served: Served, report: dict[str, Any]
) -> None:
    trials = [trial("baseline", 2.8), trial("candidate", 2.0)]
    spent = {"trials": 4, "spent_trials": 2, "device_hours": 8.0, "spent_device_hours": 1.5}
    gain = {"speedup": 1.4, "speedup_low": 1.3, "speedup_high": 1.5}
    measured = {
        "step_time_s": 2.0, "interval_s": [1.8, 2.2], "noise": 0.01, "peak_memory_gib": None,
        "predicted_step_time_s": 2.1, "trial": "a", **gain,
    }  # fmt: skip
    first = {**report["proposals"][0], "measured": measured}
    tuned = {
        **report,
        "trials": trials,
        "stopping": {"says": "the rest is noise", "expected_gain": None, "noise": None, **spent},
        "proposals": [first, *report["proposals"][1:]],
    }
    answer, page = get(served, f"/sessions/{done(served, tuned)}")
    assert answer.status_code == 200, page.text
    assert "2 of at most 4 plans were tried, in 1.5 of 8 device-hours" in page.text
    assert "measured speedup over today" in page.text
    assert "2.00 s (1.80 to 2.20)" in page.text
    assert [heading for heading in page.all("h2") if heading.get("id") == "trials"]


def test_after_trials_every_page_predicts_by_what_they_taught(served: Served, report: dict[str, Any]) -> None:
    slow = ClusterCalibration("megatron-core", "hopper", "h100-sxm-80gb", {"step_overhead_s": 0.5}).apply()
    learned = {**report, "calibration": slow.to_data()}
    workload = view_of(SCENARIO, Report.model_validate(learned)).workload
    assert workload.scenario.plan
    step_s = workload.predict([workload.scenario.plan])[0].step_time_s
    assert step_s > 1.2 * report["baseline"]["step_time_s"]
    id = done(served, learned)
    for path in (f"/what-if?session={id}", f"/compare?a={id}&a_plan=today&b={id}&b_plan=1"):
        assert seconds(step_s) in get(served, path)[1].text, path


def test_a_waiting_session_shows_the_proposals_before_there_is_a_report(
    served: Served, report: dict[str, Any]
) -> None:
    id = waiting(served, report)
    assert served.client.get(f"/sessions/{id}/figures/mesh").status_code == 200
    answer, page = get(served, f"/sessions/{id}")
    assert answer.status_code == 200
    assert "Decide which one to take" in page.text
    figures = get(served, f"/sessions/{id}/figures")[1].all("figure")
    assert [figure for figure in figures if "mesh" in str(figure.get("data-figure"))]
    speedup = report["proposals"][0]["speedup"]
    assert f"{speedup:.2f}x" in page.text


def test_who_is_asked_for_the_next_trial_sees_what_was_measured_so_far(
    serve: Serve, report: dict[str, Any]
) -> None:
    served = serve(launch_templates=TEMPLATES, launch_template="reference-local")
    id = waiting(served, report, mode="tune", trials=[trial("baseline", 2.8)])
    page = get(served, f"/sessions/{id}")[1]
    assert "Approve the one to measure next" in page.text
    assert "2.80 s (2.52 to 3.08)" in page.text


def test_the_line_of_a_waiting_session_shows_what_is_known(served: Served, report: dict[str, Any]) -> None:
    id = served.submit({**SCENARIO, "approval": "person"})
    first = {"rank": 1, "plan": report["proposals"][0]["plan"], "speedup": 1.37, "measured": None}
    asked = {"question": "which proposal?", "bottleneck": "pipeline", "proposals": [first]}
    state, columns = end_of(Outcome(None, asked))
    served.end(id, state, **columns)
    _, page = get(served, "/")
    assert "pipeline" in page.text
    assert "1.37x" in page.text


def test_a_failed_session_shows_why_and_offers_to_run_it_again(served: Served) -> None:
    id = served.submit()
    served.end(id, FAILED, error={"kind": "infeasible", "message": "no legal plan fits", "field": None})
    _, page = get(served, f"/sessions/{id}")
    assert "No legal plan fits." in page.text
    assert "Run again" in page.text


def test_the_list_is_found_under_the_sessions_too_with_its_filters(served: Served) -> None:
    for given, place in (("", "/"), ("?q=70b+x&state=failed", "/?q=70b+x&state=failed")):
        answer, _ = get(served, f"/sessions{given}")
        assert (answer.status_code, answer.headers["location"]) == (308, place)


def test_a_queued_session_says_that_it_waits_and_where_its_events_are(served: Served) -> None:
    id = served.submit()
    _, page = get(served, f"/sessions/{id}")
    assert "as soon as a worker is free" in page.text
    assert [
        element
        for element in page.all("div")
        if element.get("data-events") == f"/v1/sessions/{id}/events?after=1"
    ]


def with_imports(names: set[str]) -> set[str]:
    """The files with every script that a script among them imports."""
    texts = [all_assets()[name].body.decode() for name in names if name.endswith(".js")]
    imported = {name for text in texts for name in re.findall(r"""from "\./([\w.]+)\"""", text)}
    return names if imported <= names else with_imports(names | imported)


def test_pages_are_light(served: Served, report: dict[str, Any]) -> None:
    """All that a page loads besides Plotly, before compression."""
    id = done(served, report)
    for path in (*STILL, f"/sessions/{id}", f"/sessions/{id}/trail"):
        answer, _ = get(served, path)
        loaded = with_imports(set(re.findall(r"/static/[0-9a-f]+/([\w.]+)", answer.text)))
        weight = len(answer.content) + sum(len(all_assets()[name].body) for name in loaded)
        assert weight < MAX_BYTES, f"{path}: {weight:,}"


def test_what_is_not_there_is_told_as_a_page_to_browsers_and_as_a_problem_to_others(served: Served) -> None:
    answer, page = get(served, "/sessions/0" * 2)
    assert answer.status_code == 404
    assert "Not found" in page.text
    plain = served.client.get("/sessions/00", headers={"Accept": "application/json"})
    assert plain.headers["content-type"] == "application/problem+json"
    assert served.client.get("/v1/nothing", headers={"Accept": "text/html"}).headers["content-type"] == (
        "application/problem+json"
    )


def test_a_page_that_breaks_says_so_without_its_reasons(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError("secret reason")

    monkeypatch.setattr("service.web.hardware.device_lines", fail)
    answer, page = get(served, "/hardware")
    assert answer.status_code == 500
    assert "secret reason" not in answer.text
    assert "The server failed" in page.text


def test_an_asset_may_be_kept_for_ever_under_its_own_address_only(served: Served) -> None:
    _, page = get(served, "/")
    address = next(str(link["href"]) for link in page.all("link") if str(link["href"]).endswith("app.css"))
    kept = served.client.get(address)
    assert "immutable" in kept.headers["cache-control"]
    other = served.client.get(re.sub(r"/static/\w+/", "/static/0000/", address))
    assert other.headers["cache-control"] == "no-cache"
    assert other.text == kept.text
    assert served.client.get(address.replace("app.css", "..%2f__init__.py")).status_code == 404


def test_plotly_is_served_compressed_from_its_package(served: Served) -> None:
    from service.web.rendering import address_of

    answer = served.client.get(address_of(SCRIPT), headers={"Accept-Encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip"
    assert len(answer.content) == len(all_assets()[SCRIPT].body)


def test_the_api_is_described_for_readers_with_a_body_to_copy(served: Served) -> None:
    _, page = get(served, "/docs")
    assert "POST /v1/sessions Submit a session" in page.text
    assert '"num_hidden_layers": 80' in page.text
    paths = served.client.get("/openapi.json").json()["paths"]
    assert len(page.all("summary")) == sum(len(methods) for methods in paths.values())
    assert "/openapi.json" in page.links()


def test_filters_stay_in_the_addresses_of_a_list() -> None:
    view = session_list([], {"completed": 3, "failed": 1}, {"q": "70b x", "state": "failed"}, None, "next")
    assert view.next_address == "/?state=failed&q=70b+x&cursor=next"
    assert [(tab.name, tab.address, tab.is_chosen) for tab in view.tabs] == [
        ("all", "/?q=70b+x", False),
        ("completed", "/?state=completed&q=70b+x", False),
        ("failed", "/?state=failed&q=70b+x", True),
    ]


def test_every_device_and_every_figure_has_its_source() -> None:
    assert [line.device.name for line in device_lines()] == list(device_names())
    for name in device_names():
        assert all(fact.source for fact in facts_of(get_device(name))), name
