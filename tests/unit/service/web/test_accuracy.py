"""Accuracy reads the validation that comes with the package, and trials of the knowledge base."""

import pytest

from service.web.accuracy import (
    EXPERTS,
    find_trust,
    median_error,
    published,
    published_pairs,
    sections_of,
    trials_of,
)
from tools.kb import open_seed


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


def test_trust_is_that_of_runs_of_the_same_kind_of_model() -> None:
    trust, experts = find_trust(), find_trust(EXPERTS)
    assert trust
    assert experts
    assert trust.score.rows > 400
    assert experts.score.median > trust.score.median
    assert find_trust("nothing") is None
    assert trust.devices >= {"h100-sxm-80gb", "tpu-v5p"}
    assert "cpu" not in trust.devices


def test_only_cases_with_both_figures_are_trials() -> None:
    from dataclasses import replace

    entries = open_seed().entries("case")
    assert trials_of(entries) == []
    own = replace(
        entries[0],
        body=entries[0].body.model_copy(
            update={"predicted": {"step_time_s": 2.0}, "measured": {"step_time_s": 2.5}}
        ),
    )
    (trial,) = trials_of([own, entries[1]])
    assert trial.error_ratio == pytest.approx(-0.2)
    assert median_error([trial]) == pytest.approx(0.2)
    assert median_error([]) is None
