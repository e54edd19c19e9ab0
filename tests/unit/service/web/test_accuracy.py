"""Accuracy reads the validation that comes with the package, and trials of the knowledge base."""

from service.clusters.pages import (
    published,
    published_pairs,
    sections_of,
)
from tests.unit.service.served import Served
from tests.unit.service.web.browsing import get
from tools.model.validation import find_benchmark


def test_published_runs_come_with_the_package() -> None:
    validation = published()
    assert validation
    pairs = published_pairs(validation)
    assert len(pairs) > 500
    assert {pair.group for pair in pairs} == {"dense", "mixture of experts", "very small models"}
    first = sections_of(validation)[0]
    assert (first.title, first.scores[0].name) == (
        "Whole sources left out in turn, mean over sources",
        "all",
    )
    assert not sections_of(None)
    assert not published_pairs(None)


def test_other_cost_models_are_shown_beside_ours_on_the_runs_that_they_answer(served: Served) -> None:
    benchmark = find_benchmark()
    assert benchmark
    (score,) = [s for s in benchmark.scores if (s.name, s.task) == ("calculon", "peak memory")]
    _, page = get(served, "/accuracy")
    assert f"calculon peak memory {score.error:.1%} {score.answered} of {score.runs}" in page.text
    assert "Primus projection step time – 0 of" in page.text
    drawn = served.client.get("/accuracy/benchmark?task=peak%20memory").json()
    (bars, own), rows = drawn["layers"], drawn["y"]["rows"]
    place = rows.index("calculon")
    assert (bars["x1"][place], own["x"][place]) == (score.error, score.beside)
    assert "nearest run" not in rows, "it has no memory"
    assert served.client.get("/accuracy/benchmark?task=colour").status_code == 422
