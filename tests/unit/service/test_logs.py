"""Logs are one JSON object a line, carry the request's id, and hold no secret."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
from pydantic import SecretStr

from service.logs import HIDDEN, JsonFormatter, Redactor, configure_logs, request_id, secrets_of
from service.settings import Settings


def line_of(message: str, redactor: Redactor | None = None, **extra: object) -> dict[str, object]:
    record = logging.makeLogRecord({"name": "asap", "levelname": "INFO", "msg": message, **extra})
    line = json.loads(JsonFormatter(redactor or Redactor()).format(record))
    assert isinstance(line, dict)
    return line


def test_a_line_has_time_level_logger_message_and_what_was_added() -> None:
    line = line_of("it happened", session="s1", seconds=0.5)
    assert line["message"] == "it happened"
    assert (line["level"], line["logger"]) == ("info", "asap")
    assert (line["session"], line["seconds"]) == ("s1", 0.5)
    assert str(line["at"]).endswith("+00:00")


def test_a_line_carries_the_id_of_the_request_it_belongs_to() -> None:
    token = request_id.set("r-1")
    try:
        assert line_of("inside")["request_id"] == "r-1"
    finally:
        request_id.reset(token)
    assert "request_id" not in line_of("outside")


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("key asap_0a1b2c3d4e5f_S3cret-part_x given", "S3cret-part"),
        ("Authorization: Bearer abcdef.ghi-jkl", "abcdef"),
        ("token eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ4In0.c2ln", "eyJzdWIi"),
        ("postgresql://asap:hunter2@db/asap", "hunter2"),
        ("key sk-abcdefghijkl", "abcdefghijkl"),
    ],
)
def test_what_looks_like_a_credential_is_hidden(text: str, secret: str) -> None:
    cleaned = Redactor().clean(text)
    assert secret not in cleaned
    assert HIDDEN in cleaned


def test_a_secret_that_json_writes_with_escapes_is_hidden_too() -> None:
    secret = 'p\u00e4ss"wort\\9'
    line = line_of(f"login with {secret} failed", Redactor([secret]), password=secret)
    assert line["message"] == f"login with {HIDDEN} failed"
    assert line["password"] == HIDDEN


def test_the_installation_s_own_secrets_are_hidden_wherever_they_stand() -> None:
    settings = Settings(llm_api_key=SecretStr("plainword1"), webhook_secret=SecretStr("other-word"))
    redactor = Redactor(secrets_of(settings))
    assert redactor.clean("a plainword1 and other-word") == f"a {HIDDEN} and {HIDDEN}"


def test_a_secret_in_a_traceback_is_hidden() -> None:
    try:
        raise ValueError("asap_0a1b2c3d4e5f_topsecret")
    except ValueError as error:
        line = line_of("failed", exc_info=(type(error), error, error.__traceback__))
    assert "topsecret" not in str(line["traceback"])
    assert "ValueError" in str(line["traceback"])


@pytest.fixture
def _root_logger_restored() -> Iterator[None]:
    root = logging.getLogger()
    before = list(root.handlers), root.level
    yield
    root.handlers, root.level = before[0], before[1]


@pytest.mark.usefixtures("_root_logger_restored")
def test_every_logger_writes_through_the_formatter() -> None:
    stream = io.StringIO()
    configure_logs(Settings(log_level="info"), stream)
    logging.getLogger("some.library").info("hello")
    logging.getLogger("some.library").debug("quiet")
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == ["hello"]
