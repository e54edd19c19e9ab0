"""A proposal's words quote its figures; verification finds a wrong number, an illegal plan, one that does
not fit, and nothing else."""

import json
import math
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.recommend.cases import Raw, llama, report, workload_for
from tests.unit.recommend.test_optimize import EVERY, WITH_TODAY, WORKLOADS
from tools.cost.predict import predict
from tools.recommend.proposal import recheck
from tools.recommend.report import Recommendation, Verification
from tools.recommend.words import TERMS, format_same_decimals, span
from tools.scenario import parse_scenario

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


@WITH_TODAY
def test_a_difference_inside_the_error_of_a_comparison_is_called_that(raw: Raw) -> None:
    result = report(raw)
    for proposal in result["proposals"]:
        half_width = math.log(proposal["speedup_high"] / proposal["speedup"])
        inside = abs(math.log(proposal["speedup"])) <= half_width and result["baseline"]["fits"]
        assert ("inside the error of a comparison: measure" in proposal["rationale"]) == inside


@EVERY
def test_risks_name_the_interval_and_a_tight_memory(raw: Raw) -> None:
    for proposal in report(raw)["proposals"]:
        p, risks = proposal["prediction"], proposal["risks"]
        interval = span(p["step_time_low_s"], p["step_time_high_s"])
        assert any(f"{interval} s" in risk for risk in risks)
        tight = p["peak_memory_gib"] > 0.95 * 79.1
        assert any("GiB of memory are left" in risk for risk in risks) == tight


def test_slower_links_are_a_risk_of_the_size_that_a_prediction_gives() -> None:
    first = report(llama())["proposals"][0]
    risk = next(r for r in first["risks"] if "half the network bandwidth" in r)
    slow = json.loads(json.dumps(llama(plan=first["plan"])))
    slow["cluster"]["overrides"] = {"inter_node_gbps_per_device": 200}
    longer = predict([parse_scenario(slow)])[0].step_time_s / first["prediction"]["step_time_s"] - 1.0
    assert f"{longer:.0%} longer" in risk


def test_a_faster_plan_behind_a_preferred_one_is_explained_by_knowledge() -> None:
    for raw in WORKLOADS.values():
        proposals = report(raw)["proposals"]
        first, *later = [proposal["prediction"]["step_time_s"] for proposal in proposals]
        reasons = [e["says"] for e in proposals[0]["evidence"] if e["kind"] == "knowledge"]
        assert bool(reasons) == any(time_s < first for time_s in later)
        assert all("practitioners would take" in reason for reason in reasons)


def verified(spoil: Callable[[Any], object] | None = None) -> Verification:
    """What is found in the report of the tools, or in one that was spoilt on the way."""
    data = report(llama())
    if spoil:
        spoil(data)
    stated = Recommendation.model_validate(data)
    return recheck(workload_for(llama()), stated.proposals, stated.baseline)


def test_a_report_of_the_tools_holds_in_every_number() -> None:
    result = verified()
    assert (result.holds, result.faults) == (True, [])
    assert result.checked > 100


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
    assert says in result.faults[0].says
