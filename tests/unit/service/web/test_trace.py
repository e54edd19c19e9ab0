"""The trace page: who sees which events and files, and the tables beside the timeline."""

from pathlib import Path

import pytest

from tests.unit.service.served import SCENARIO, Served
from tests.unit.service.web.browsing import get

TRACES = Path(__file__).resolve().parents[4] / "examples" / "traces" / "ddp-gloo-straggler"


@pytest.fixture
def traced(served: Served) -> str:
    """A session whose traces are a folder of the server."""
    answer = served.client.post("/v1/sessions", json={**SCENARIO, "traces": str(TRACES)})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def test_the_page_names_every_rank_and_has_its_tables(served: Served, traced: str) -> None:
    answer, page = get(served, f"/trace?a={traced}")
    assert answer.status_code == 200, answer.text
    events = [span["data-events"] for span in page.all("span") if span.get("data-events")]
    assert len(events) == len(list(TRACES.glob("*.json.gz")))
    assert "Longest kernels" in page.text
    assert "Collectives that waited longest" in page.text
    assert answer.headers["cross-origin-opener-policy"] == "same-origin-allow-popups"
    packed = served.client.get(str(events[0]))
    assert packed.status_code == 200
    assert b'"names"' in packed.content[:200_000]


def test_only_traces_of_the_source_are_read_and_a_servers_folder_is_not_handed_out(
    served: Served, traced: str
) -> None:
    for name in ("../ddp-gloo-straggler/rank0.json.gz", "/etc/passwd", "base.json", "none.json"):
        answer = served.client.get("/trace/events", params={"of": traced, "file": name})
        assert answer.status_code == 404, name
    answer = served.client.get("/trace/file", params={"of": traced, "file": "rank0.json.gz"})
    assert answer.status_code == 404


@pytest.mark.parametrize("of", ["trace:0", "nobody", "trace:" + "0" * 32])
def test_what_does_not_exist_is_not_found(served: Served, of: str) -> None:
    assert get(served, f"/trace?a={of}")[0].status_code == 404


def test_two_traces_are_compared_place_by_place(served: Served, traced: str) -> None:
    answer, page = get(served, f"/trace?a={traced}&b={traced}")
    assert answer.status_code == 200
    assert "What changed from A to B" in page.text
    assert "the changes add up to +0.000 ms per rank and step" in page.text
