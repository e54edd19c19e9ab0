"""A proposal's words quote its figures; verification finds a wrong number, an illegal plan, one that does
not fit, and nothing else."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.recommend.cases import Raw, llama, recommendation, report, workload_for
from tests.unit.recommend.test_optimize import EVERY, WITH_TODAY
from tools.recommend.proposal import recheck
from tools.recommend.report import Recommendation, Verification
from tools.recommend.words import TERMS, format_same_decimals

FROM_TO = r"\(([\d.e-]+) to ([\d.e-]+) s\)"


@WITH_TODAY
def test_the_rationale_quotes_terms_of_the_two_breakdowns(raw: Raw) -> None:
    result = report(raw)
    before, terms = result["baseline"]["breakdown_s"], {words: term for term, words in TERMS.items()}
    quoted = 0
    for proposal in result["proposals"]:
        after = proposal["prediction"]["breakdown_s"]
        for words, old, new in re.findall(rf"([a-zA-Z][a-z -]*?) {FROM_TO}", proposal["rationale"]):
            term = next(terms[w] for w in terms if words.lower().removeprefix("and ").endswith(w))
            assert [old, new] == format_same_decimals(before[term], after[term])
            quoted += 1
        for part in re.split(r"[;.] ", proposal["rationale"]):
            pairs = [(float(old), float(new)) for old, new in re.findall(FROM_TO, part)]
            assert not re.search(r"shrinks?\b", part) or all(old >= new for old, new in pairs)
            assert not re.search(r"grows?\b", part) or all(old <= new for old, new in pairs)
    assert quoted >= len(result["proposals"])


def verified(spoil: Callable[[Any], object]) -> Verification:
    """What is found in a report of the tools that was spoilt on the way."""
    data = report(llama())
    spoil(data)
    stated = Recommendation.model_validate(data)
    return recheck(workload_for(llama()), stated.proposals, stated.baseline)


@EVERY
def test_a_report_of_the_tools_holds_in_every_number_and_its_plans_fit_and_are_legal(raw: Raw) -> None:
    made = recommendation(raw)
    result = recheck(workload_for(raw), made.proposals, made.baseline)
    assert (result.holds, result.faults) == (True, [])
    assert result.checked > 50
    assert all(proposal.prediction.fits for proposal in made.proposals)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("proposals", 0, "speedup"), 2.58),
        (("proposals", 1, "prediction", "step_time_s"), 1.0),
        (("proposals", 2, "prediction", "memory_gib", "activations"), 0.0),
        (("proposals", 0, "prediction", "fits"), False),
        (("proposals", 0, "changes"), []),
        (("proposals", 0, "changes"), [{"field": "cp", "from": 1, "to": 99}]),
        (("baseline", "mfu"), 0.9),
    ],
)
def test_one_wrong_number_is_found_and_named(path: tuple[Any, ...], value: object) -> None:
    def spoil(data: Any) -> None:  # noqa: ANN401 - JSON
        for name in path[:-1]:
            data = data[name]
        data[path[-1]] = value

    result = verified(spoil)
    assert not result.holds
    place = "baseline" if path[0] == "baseline" else f"proposals[{path[1]}].{path[2]}"
    assert all(fault.place.startswith(place) for fault in result.faults)


UNSHARDED = {
    "tp": 1, "pp": 1, "vpp": 1, "dp": 64, "dp_shard": 64, "zero_stage": 1, "schedule": "1f1b",
    "sequence_parallel": False, "recompute": "none", "micro_batch_size": 2,
}  # fmt: skip


@pytest.mark.parametrize(("plan", "says"), [({"ep": 2}, "refuses"), (UNSHARDED, "GiB")])
def test_a_plan_that_is_refused_or_does_not_fit_is_found(plan: Raw, says: str) -> None:
    result = verified(lambda data: data["proposals"][0]["plan"].update(plan))
    assert says in result.faults[0].message
