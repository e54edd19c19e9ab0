"""Spending, resting, ways and pauses: the small parts that keep count."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph.reasoner.client import MAX_BACKOFF_S, Endpoint, Spend, backoff_s, tokens_of
from graph.reasoner.faults import MALFORMED, TIMEOUT, Breaker, Fault, OutputStrategy, StrategyMemory
from graph.reasoner.prompts import rounded

REPO = Path(__file__).resolve().parents[4]
PRICED = Endpoint("http://host/v1", "m", price_per_million_input=3.0, price_per_million_output=15.0)
DOWN = Fault(TIMEOUT, "no answer")


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6))))
def test_spending_adds_up(replies: list[tuple[int, int]]) -> None:
    spend = Spend(PRICED)
    for reply in replies:
        spend.add(*reply)
    given_in, given_out = (sum(part) for part in zip(*replies, strict=True)) if replies else (0, 0)
    assert spend.tokens == given_in + given_out
    assert spend.cost == pytest.approx((3 * given_in + 15 * given_out) / 1e6)
    assert "estimated" not in str(spend)


def test_an_estimate_is_marked() -> None:
    spend = Spend(PRICED)
    spend.estimate("x" * 401, "")
    assert (spend.tokens, spend.is_estimated) == (101, True)
    assert "estimated" in str(spend)
    assert tokens_of("") == 0


def test_an_endpoint_rests_after_two_failures_and_is_tried_again_later() -> None:
    now = [100.0]
    breaker = Breaker(lambda: now[0], most_failures=2, rest_s=60)
    breaker.note(DOWN)
    breaker.check()
    breaker.note(DOWN)
    with pytest.raises(Fault, match="no answer, 2 questions in a row: not asked again for 60 s") as raised:
        breaker.check()
    assert raised.value.kind == TIMEOUT
    now[0] += 61
    breaker.check()
    breaker.note(DOWN)
    with pytest.raises(Fault):
        breaker.check()


@pytest.mark.parametrize("between", [None, Fault(MALFORMED, "no JSON")])
def test_an_answer_of_any_kind_shows_that_the_endpoint_is_up(between: Fault | None) -> None:
    breaker = Breaker(lambda: 0.0, most_failures=2)
    for fault in (DOWN, between, DOWN):
        breaker.note(fault)
    breaker.check()


def test_the_best_way_comes_first_and_tools_only_where_there_are_some() -> None:
    ways = StrategyMemory(lambda: 0.0)
    assert ways.open(with_tools=True) == [
        OutputStrategy.TOOLS,
        OutputStrategy.SCHEMA,
        OutputStrategy.OBJECT,
        OutputStrategy.TEXT,
    ]
    assert ways.open(with_tools=False) == [OutputStrategy.SCHEMA, OutputStrategy.OBJECT, OutputStrategy.TEXT]


def test_a_refused_way_stays_closed_for_an_hour_and_a_proven_one_open() -> None:
    now = [0.0]
    ways = StrategyMemory(lambda: now[0])
    ways.learn(OutputStrategy.OBJECT, [OutputStrategy.TOOLS, OutputStrategy.SCHEMA])
    assert ways.open(with_tools=True) == [OutputStrategy.OBJECT, OutputStrategy.TEXT]
    ways.learn(OutputStrategy.TEXT, [OutputStrategy.OBJECT])
    assert ways.open(with_tools=True) == [OutputStrategy.OBJECT, OutputStrategy.TEXT]
    now[0] += 3600
    assert ways.open(with_tools=True) == [
        OutputStrategy.TOOLS,
        OutputStrategy.SCHEMA,
        OutputStrategy.OBJECT,
        OutputStrategy.TEXT,
    ]


@given(st.floats(-1e300, 1e300))
def test_a_rounded_figure_has_five_digits_and_stands_for_the_figure(figure: float) -> None:
    short: Any = rounded({"a": [figure, True, 7, "text"]})
    assert short["a"][1:] == [True, 7, "text"]
    assert short["a"][0] == float(f"{short['a'][0]:.5g}")
    assert abs(short["a"][0] - figure) <= 5e-5 * abs(figure) + 1e-300


@given(st.integers(0, 60))
def test_a_pause_grows_and_is_bounded(failures: int) -> None:
    assert 0.25 <= backoff_s(failures) <= MAX_BACKOFF_S
    assert backoff_s(failures) <= 0.5 * 2**failures


def test_importing_the_reasoner_loads_neither_langchain_nor_openai() -> None:
    script = (
        "import sys, graph.reasoner.llm; print({'langchain_openai', 'openai', 'httpx2'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPO, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
