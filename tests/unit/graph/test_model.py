"""The endpoint: settings checked once, what a status means, what was spent, when to rest, what it offers."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph import model as faults
from graph.middleware import MAX_BACKOFF_S, backoff_s
from graph.model import (
    LOCAL_KEY,
    TIMEOUT,
    Abilities,
    Breaker,
    Endpoint,
    Fault,
    OutputStrategy,
    Spend,
    fault_of_status,
    requested_wait_s,
)
from tools.errors import InputError

REPO = Path(__file__).resolve().parents[3]
PRICED = Endpoint("http://host/v1", "m", price_per_million_input=3.0, price_per_million_output=15.0)
DOWN = Fault(TIMEOUT, "no answer")
GOOD = Endpoint("http://localhost:8000/v1", "some-model", api_key="sk-secret")


def test_the_key_is_in_no_text_of_it() -> None:
    assert "sk-secret" not in f"{GOOD!r} {GOOD}"
    assert (GOOD.key, replace(GOOD, api_key="").key) == ("sk-secret", LOCAL_KEY)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("base_url", "localhost:8000"),
        ("base_url", "ftp://host/v1"),
        ("base_url", "http:///v1"),
        ("base_url", "http://[::1/v1"),
        ("base_url", "http://host:99999/v1"),
        ("base_url", "http://user:password@host/v1"),
        ("base_url", "http://host/v1?key=1"),
        ("model", ""),
        ("timeout_s", 0),
        ("timeout_s", float("nan")),
        ("deadline_s", -1),
        ("max_tokens", 0),
        ("retries", -1),
        ("price_per_million_input", -0.1),
    ],
)
def test_a_wrong_setting_is_named(field: str, value: object) -> None:
    with pytest.raises(InputError) as raised:
        replace(GOOD, **{field: value})  # type: ignore[arg-type]
    assert raised.value.path == field
    assert "password" not in str(raised.value.given)


KEY = "sk-secret"
NOON = "Sun, 06 Nov 1994 12:00:00 GMT"
NOON_S = 784123200.0


def fault(status: int, says: str = "", code: str | None = None, **headers: str) -> Fault:
    return fault_of_status(status, {"message": says, "code": code}, headers, KEY)


@pytest.mark.parametrize(
    "says",
    [
        "request (9031 tokens) exceeds the available context size (8192 tokens), try increasing it",
        "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens",
        "Input tokens exceed the configured limit of 272000 tokens",
        "prompt is too long: 210000 tokens > 200000 maximum",
        "Your input exceeds the context window of this model",
    ],
)
def test_an_overflow_is_known_in_the_words_of_several_servers(says: str) -> None:
    assert fault(400, says).kind == faults.OVERFLOW


def test_a_server_that_failed_is_asked_again_unless_it_asks_for_minutes() -> None:
    assert fault(503).repeat
    assert fault(503, **{"retry-after": "30"}).wait_s == 30
    assert not fault(503, **{"retry-after": "300"}).repeat


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"retry-after": "12"}, 12.0),
        ({"retry-after": " 1.5 "}, 1.5),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after": NOON}, 40.0),
        ({"retry-after": "Sun, 06 Nov 1994 11:00:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after-ms": "x"}, None),
    ],
)
def test_a_requested_wait_is_read_in_every_form(headers: dict[str, str], expected: float | None) -> None:
    assert requested_wait_s(headers, NOON_S - 40) == expected


@pytest.mark.parametrize(
    "body", [None, "plain text", ["list"], {}, {"message": None}, {"detail": [{"loc": []}]}]
)
def test_an_error_of_any_shape_is_understood(body: object) -> None:
    assert fault_of_status(422, body, {}, KEY).kind == faults.BAD_REQUEST


@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 10**6))))
def test_spending_adds_up(replies: list[tuple[int, int]]) -> None:
    spend = Spend(PRICED)
    for reply in replies:
        spend.add("", "", reply)
    given_in, given_out = (sum(part) for part in zip(*replies, strict=True)) if replies else (0, 0)
    assert spend.tokens == given_in + given_out
    assert spend.cost == pytest.approx((3 * given_in + 15 * given_out) / 1e6)
    assert "estimated" not in str(spend)


def test_an_estimate_is_marked() -> None:
    spend = Spend(PRICED)
    spend.add("x" * 401, "")
    assert (spend.tokens, spend.is_estimated) == (101, True)
    assert "estimated" in str(spend)


def test_an_endpoint_rests_after_two_failures_and_is_tried_again_later() -> None:
    now = [100.0]
    breaker = Breaker(lambda: now[0], max_failures=2, rest_s=60)
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


def test_a_refused_way_stays_closed_for_an_hour_and_a_proven_one_open() -> None:
    now = [0.0]
    ways = Abilities(lambda: now[0])
    ways.learn(OutputStrategy.OBJECT, [OutputStrategy.TOOLS, OutputStrategy.SCHEMA])
    assert ways.strategies(with_tools=True) == [OutputStrategy.OBJECT, OutputStrategy.TEXT]
    ways.learn(OutputStrategy.TEXT, [OutputStrategy.OBJECT])
    assert ways.strategies(with_tools=True) == [OutputStrategy.OBJECT, OutputStrategy.TEXT]
    now[0] += 3600
    assert ways.strategies(with_tools=True) == [
        OutputStrategy.TOOLS,
        OutputStrategy.SCHEMA,
        OutputStrategy.OBJECT,
        OutputStrategy.TEXT,
    ]


@given(st.integers(0, 60))
def test_a_pause_grows_and_is_bounded(failures: int) -> None:
    assert 0.25 <= backoff_s(failures) <= MAX_BACKOFF_S
    assert backoff_s(failures) <= 0.5 * 2**failures


def test_importing_the_reasoner_loads_neither_langchain_nor_openai() -> None:
    heavy = "{'langchain', 'langchain_openai', 'openai', 'httpx2'}"
    script = f"import sys, graph.agents; print({heavy} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPO, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
