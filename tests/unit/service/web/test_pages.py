"""Every page answers, says what it should, and is light."""

import gzip
import re
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import iter_route_contexts

from service.app import API_ROUTERS, PAGE_ROUTERS
from service.http.computing import COMPUTING
from service.http.middleware import CONTENT_POLICY
from service.jobs.model import COMPLETED
from service.planner.hardware import facts_of
from service.render.text import seconds
from service.sessions.model import WAITING
from service.web.assets import address_of, all_assets
from tests.unit.service.render import scenes
from tests.unit.service.served import SCENARIO, Serve, Served
from tests.unit.service.web.browsing import get
from tools.hardware import device_names, get_device
from tools.model.calibration import ClusterCalibration
from tools.recommend.workload import Workload

MAX_BYTES = 150_000
STILL = (
    "/", "/what-if", "/compare", "/knowledge", "/schedules", "/fleet", "/hardware", "/accuracy", "/docs",
    "/sessions/new",
)  # fmt: skip


def test_every_page_answers_when_empty_and_keeps_the_strict_content_policy(served: Served) -> None:
    """No page holds a script or a style of its own."""
    assert "unsafe" not in CONTENT_POLICY
    for path in (*STILL, "/hardware/b200", "/sessions/none", "/nowhere"):
        answer, page = get(served, path)
        assert (answer.status_code == 200) == (path not in ("/sessions/none", "/nowhere")), path
        assert (len(page.all("h1")), len(page.all("main"))) == (1, 1), path
        assert answer.headers["content-security-policy"] == CONTENT_POLICY, path
        assert page.all("style") == [], path
        assert all(script.get("src") for script in page.all("script")), path
        assert not [attributes for _, attributes in page.elements if "style" in attributes], path


def test_a_session_shows_its_verdict_and_its_proposals_with_all_that_was_asked_for(
    served: Served, id: str, report: dict[str, Any]
) -> None:
    answer, page = get(served, f"/sessions/{id}")
    assert answer.status_code == 200
    assert report["verdict"][:40] in page.text
    for proposal in report["proposals"]:
        assert f"plan-{proposal['rank']}" in answer.text
        assert proposal["role"] in page.text
        assert f"{proposal['prediction']['fit_probability']:.0%} likely to fit" in page.text
    for words in (
        "Where the step goes",
        "All plans",
        "Next",
        "Export",
        "Approve",
        "Reject",
        "Diagnosis",
        "Evidence",
    ):
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
        "headline": None,
    }
    id = served.submit()
    served.end(id, COMPLETED, report=tuned)
    answer, page = get(served, f"/sessions/{id}")
    assert answer.status_code == 200, page.text
    assert "2 of at most 4 plans were tried, in 1.5 of 8 device-hours" in page.text
    assert "measured speedup over today" in page.text
    assert "2.00 s (1.80 to 2.20)" in page.text
    assert [heading for heading in page.all("h2") if heading.get("id") == "trials"]


def test_after_trials_every_page_predicts_by_what_they_taught(served: Served, report: dict[str, Any]) -> None:
    slow = ClusterCalibration(
        framework="megatron-core",
        generation="hopper",
        device="h100-sxm-80gb",
        coefficients={"step_overhead_s": 0.5},
    ).apply()
    learned = {**report, "calibration": slow.to_data()}
    workload = scenes.view_of(SCENARIO, learned).workload
    assert workload.scenario.plan
    step_s = workload.predict([workload.scenario.plan])[0].step_time_s
    assert step_s > 1.2 * report["baseline"]["step_time_s"]
    id = served.submit()
    served.end(id, COMPLETED, report=learned)
    for path in (f"/what-if?session={id}", f"/compare?a={id}&a_plan=today&b={id}&b_plan=1"):
        assert seconds(step_s) in get(served, path)[1].text, path


def with_imports(names: set[str]) -> set[str]:
    """The files with every script that a script among them imports."""
    texts = [all_assets()[name].body.decode() for name in names if name.endswith(".js")]
    imported = {name for text in texts for name in re.findall(r"""from "\./([\w.]+)\"""", text)}
    return names if imported <= names else with_imports(names | imported)


def test_pages_are_light(served: Served, id: str) -> None:
    """All that a page loads, as it is sent; the typeface is the largest part of it."""
    for path in (*STILL, f"/sessions/{id}", f"/sessions/{id}/trail"):
        answer, _ = get(served, path)
        loaded = with_imports(set(re.findall(r"/static/[0-9a-f]+/([\w.]+)", answer.text)))
        bodies = [answer.content, *(all_assets()[name].body for name in loaded)]
        weight = sum(len(gzip.compress(body)) for body in bodies)
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

    monkeypatch.setattr("service.planner.hardware.device_names", fail)
    answer, page = get(served, "/hardware")
    assert answer.status_code == 500
    assert "secret reason" not in answer.text
    assert "The server failed" in page.text


def test_an_asset_is_kept_for_ever_under_its_own_address_and_scripts_are_compressed(
    served: Served,
) -> None:
    _, page = get(served, "/")
    address = next(str(link["href"]) for link in page.all("link") if str(link["href"]).endswith("app.css"))
    kept = served.client.get(address)
    assert "immutable" in kept.headers["cache-control"]
    other = served.client.get(re.sub(r"/static/\w+/", "/static/0000/", address))
    assert other.headers["cache-control"] == "no-cache"
    assert other.text == kept.text
    assert served.client.get(address.replace("app.css", "..%2f__init__.py")).status_code == 404
    script = served.client.get(address_of("uplot.js"), headers={"Accept-Encoding": "gzip"})
    assert script.headers["content-encoding"] == "gzip"
    assert len(script.content) == len(all_assets()["uplot.js"].body)


def test_the_api_is_described_for_readers_with_a_body_to_copy(served: Served) -> None:
    _, page = get(served, "/docs")
    assert "POST /v1/sessions Submit a session" in page.text
    assert '"num_hidden_layers": 80' in page.text
    paths = served.client.get("/openapi.json").json()["paths"]
    assert len(page.all("summary")) == 1 + sum(map(len, paths.values()))  # and a menu
    assert "/openapi.json" in page.links()


TEMPLATES = Path(__file__).parents[4] / "examples" / "launch-templates.toml"


def waiting(
    served: Served, report: dict[str, Any], mode: str = "advise", trials: Sequence[dict[str, Any]] = ()
) -> str:
    id = served.submit({**SCENARIO, "mode": mode, "approval": "person"})
    proposals = [{"rank": p["rank"], "plan": p["plan"], "measured": None} for p in report["proposals"]]
    served.end(id, WAITING, waiting_for={"question": "which?", "proposals": proposals, "trials": [*trials]})
    return id


def test_who_is_asked_for_the_next_trial_sees_what_was_measured_so_far(
    serve: Serve, report: dict[str, Any]
) -> None:
    served = serve(launch_templates=TEMPLATES, launch_template="reference-local")
    id = waiting(served, report, mode="tune", trials=[trial("baseline", 2.8)])
    page = get(served, f"/sessions/{id}")[1]
    assert "Approve the one to measure next" in page.text
    assert "2.80 s (2.52 to 3.08)" in page.text


def test_every_device_and_every_figure_has_its_source() -> None:
    for name in device_names():
        assert all(fact.source for fact in facts_of(get_device(name))), name


def test_whatever_looks_at_plans_as_it_is_read_is_answered_by_the_processes_that_compute(
    served: Served, id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one tenant's reads of it would take the server's own time from everybody's."""
    served.keep_plans(id)
    made: list[Workload] = []
    make = Workload.__init__

    def count(self: Workload, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        made.append(self)
        make(self, *args, **kwargs)

    monkeypatch.setattr(Workload, "__init__", count)
    words = {"{id}": id, "{rank}": "1", "{key}": "1", "{number}": "1", "{name}": "waterfall"}
    queries = {
        "/topology": {"session": id},
        "/what-if": {"session": id},
        "/trace": {"a": id},
        "/compare": {"a": id, "b": id, "b_plan": "today"},
    }
    found = set()
    for router in (*API_ROUTERS, *PAGE_ROUTERS):
        for route in iter_route_contexts(router.routes):
            pattern = route.path or ""
            if "GET" not in (route.methods or ()) or pattern.endswith("/events"):
                continue
            path = reduce(lambda path, name: path.replace(name, words[name]), words, pattern)
            made.clear()
            served.client.get(path, params=queries.get(pattern), headers={"Accept": "text/html"})
            found |= {f"GET {pattern}"} if made else set()
    assert {"GET /sessions/{id}/workbench", "GET /compare", "GET /topology"} <= found
    analyse = {"GET /sessions/{id}/figures/{name}", "GET /trace"}  # in the process that they ask for it
    assert found - analyse <= COMPUTING
