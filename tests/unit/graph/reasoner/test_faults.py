"""What a status and its words mean."""

import pytest

from graph.reasoner import faults
from graph.reasoner.faults import Fault, from_exception, from_status, requested_wait_s

KEY = "sk-secret"
NOON = "Sun, 06 Nov 1994 12:00:00 GMT"
NOON_S = 784123200.0


def fault(status: int, says: str = "", code: str | None = None, **headers: str) -> Fault:
    return from_status(status, {"message": says, "code": code}, headers, KEY)


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


def test_an_overflow_is_known_by_its_code_or_status_too() -> None:
    assert fault(400, "no", "context_length_exceeded").kind == faults.OVERFLOW
    assert fault(413).kind == faults.OVERFLOW


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
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after-ms": "x"}, None),
    ],
)
def test_a_requested_wait_is_read_in_every_form(headers: dict[str, str], expected: float | None) -> None:
    assert requested_wait_s(headers, NOON_S - 40) == expected


def test_a_date_that_has_passed_means_no_wait() -> None:
    assert requested_wait_s({"retry-after": NOON}, NOON_S + 100) == 0


@pytest.mark.parametrize(
    "body", [None, "plain text", ["list"], {}, {"message": None}, {"detail": [{"loc": []}]}]
)
def test_an_error_of_any_shape_is_understood(body: object) -> None:
    assert from_status(422, body, {}, KEY).kind == faults.BAD_REQUEST


def test_a_quotation_is_short_and_without_the_key() -> None:
    says = str(fault(400, f"{KEY} is not\n allowed " + "x" * 1000))
    assert says.startswith("the endpoint refuses the request (400): [key] is not allowed")
    assert len(says) < 300


def test_an_exception_of_another_kind_is_an_unreadable_reply() -> None:
    assert from_exception(KeyError("choices"), KEY).kind == faults.MALFORMED
