"""A report reaches real receivers: signed, by mail with and without TLS, and nobody is told twice."""

import json
from pathlib import Path
from typing import Any

import pytest

from service.nightly.config import Recipients
from service.nightly.deliver import ReportSender
from service.settings import Settings
from service.worker.webhooks import signature
from tests.integration.nightly.receivers import PASSWORD, USER, Hook, mail_server
from tools.nightly.result import NightReport, NightResult, report_of

SECRET = "shared"
SENDER = "ASAP <asap@cluster.example>"


def report(status: str = "quiet") -> NightReport:
    result = NightResult(
        name="llama", status=status, is_alarm=status == "regressed", hours_per_day=24.0,
        lost_device_hours_per_day=12.0, wasted_device_hours_per_day=12.0,
    )  # fmt: skip
    at = 1_790_000_000.0
    return report_of([result], "Nightly report", at, "r1", "0.1.0", at)


def post(waits: list[float] | None = None, **settings: Any) -> ReportSender:  # noqa: ANN401 - fields of Settings
    given = {"webhook_secret": SECRET, "webhook_private": True, "smtp_from": SENDER, **settings}
    pauses = waits if waits is not None else []
    return ReportSender(Settings(**given, _env_file=None), "r1", "https://asap.example/r1", pauses.append)


def test_a_webhook_is_signed_and_holds_the_report() -> None:
    with Hook() as hook:
        (told,) = post().send(report(), Recipients(webhooks=[f"{hook.url}/night?x=1"]))
        (path, headers, body) = hook.got[0]
    assert (told.ok, told.answer, told.to) == (True, "200 OK", "1: 127.0.0.1")
    assert path == "/night?x=1"
    expected = signature(SECRET.encode(), headers["X-Asap-Timestamp"], body)
    assert headers["X-Asap-Signature"] == f"sha256={expected}"
    content = json.loads(body)
    assert (content["event"], content["report"]["run_id"], content["id"]) == (
        "nightly", "r1", headers["X-Asap-Delivery"],
    )  # fmt: skip


def test_two_webhooks_of_one_host_are_two_deliveries() -> None:
    with Hook() as hook:
        post().send(report(), Recipients(webhooks=[f"{hook.url}/a", f"{hook.url}/b"]))
        ids = [headers["X-Asap-Delivery"] for _, headers, _ in hook.got]
    assert len(set(ids)) == 2


def test_chat_gets_a_message_without_a_signature() -> None:
    with Hook() as hook:
        (told,) = post().send(report("regressed"), Recipients(slack=[f"{hook.url}/services/T0/B0/token"]))
        (path, headers, body) = hook.got[0]
    assert told.ok
    assert "token" not in told.model_dump_json()
    assert path == "/services/T0/B0/token"
    assert "X-Asap-Signature" not in headers
    assert "got slower" in json.loads(body)["text"]


@pytest.mark.parametrize("wrong", ["http://hooks.example/T0 B0/token", "ftp://hooks.example/token"])
def test_a_wrong_address_is_not_told_with_its_token(wrong: str, caplog: pytest.LogCaptureFixture) -> None:
    (told,) = post().send(report(), Recipients(slack=[wrong]))
    assert not told.ok
    assert told.answer.startswith("must be")
    assert "token" not in told.model_dump_json() + caplog.text


def test_a_receiver_that_is_busy_is_tried_again_and_one_that_refuses_is_given_up() -> None:
    waits: list[float] = []
    with Hook() as hook:
        hook.answers = [503, 502]
        (told,) = post(waits).send(report(), Recipients(slack=[hook.url]))
        assert (told.ok, len(hook.got), waits) == (True, 3, [1.0, 2.0])
        hook.answers = [500] * 9
        (told,) = post(waits).send(report(), Recipients(slack=[hook.url]))
    assert (told.ok, told.answer) == (False, "500 Internal Server Error")


def test_private_addresses_are_refused_unless_the_installation_allows_them() -> None:
    with Hook() as hook:
        (told,) = post(webhook_private=False).send(report(), Recipients(webhooks=[hook.url]))
        assert hook.got == []
    assert not told.ok
    assert "public address" in told.answer


def test_without_a_secret_or_a_mail_server_the_reason_is_told() -> None:
    given = Recipients(webhooks=["http://127.0.0.1:9"], emails=["anna@team.example"])
    hook, mail = post(webhook_secret=None).send(report(), given)
    assert "ASAP_WEBHOOK_SECRET" in hook.answer
    assert "ASAP_SMTP_HOST" in mail.answer


def test_who_wants_alarms_only_is_not_told_of_a_quiet_night() -> None:
    with Hook() as hook:
        given = Recipients(slack=[hook.url], when="alarm")
        assert post().send(report(), given) == []
        assert len(post().send(report("regressed"), given)) == 1
        assert len(post().send(report("broken"), given)) == 1
        assert len(hook.got) == 2


def test_who_was_told_is_not_told_again_when_a_run_is_repeated() -> None:
    with Hook() as good, Hook() as bad:
        bad.answers = [500] * 4
        given = Recipients(webhooks=[good.url, bad.url])
        first = post().send(report(), given)
        assert [one.ok for one in first] == [True, False]
        second = post().send(report(), given, first)
    assert [one.ok for one in second] == [True, True]
    assert (len(good.got), len(bad.got)) == (1, 5)


def test_mail_has_text_and_html_and_an_id_that_stays() -> None:
    with mail_server() as (mailbox, port):
        sender = post(smtp_host="127.0.0.1", smtp_port=port, smtp_security="none")
        for _ in range(2):
            (told,) = sender.send(report("regressed"), Recipients(emails=["anna@team.example"]))
            assert told.ok, told
    first, second = mailbox.messages
    assert first["Message-ID"] == second["Message-ID"]
    assert (first["To"], first["From"]) == ("anna@team.example", SENDER)
    assert first["Subject"].startswith("Nightly report, 2026-09-21: 1 workload: 1 got slower")
    text, html = first.get_body(("plain",)), first.get_body(("html",))
    assert text is not None
    assert html is not None
    assert "| llama | got slower |" in text.get_content()
    assert "<h1>Nightly report</h1>" in html.get_content()


def test_mail_goes_through_a_server_that_wants_encryption_and_a_password(tmp_path: Path) -> None:
    with mail_server(tmp_path) as (mailbox, port):
        given: dict[str, Any] = {"smtp_host": "127.0.0.1", "smtp_port": port, "smtp_user": USER}
        trusted: dict[str, Any] = {"smtp_ca_file": tmp_path / "cert.pem"}
        wanted = Recipients(emails=["anna@team.example"])
        (told,) = post(**given, **trusted, smtp_password=PASSWORD).send(report(), wanted)
        assert told.ok, told
        waits: list[float] = []
        (told,) = post(waits, **given, **trusted, smtp_password="wrong").send(report(), wanted)
        assert not told.ok
        assert told.answer.startswith("(535")
        (told,) = post(waits, **given, smtp_password=PASSWORD).send(report(), wanted)
        assert "certificate" in told.answer.lower()
    assert waits == []  # neither gets better by waiting
    assert len(mailbox.messages) == 1


def test_a_recipient_that_the_server_refuses_does_not_keep_the_others_from_it() -> None:
    with mail_server() as (mailbox, port):
        mailbox.refuses = ["gone@team.example"]
        sender = post(smtp_host="127.0.0.1", smtp_port=port, smtp_security="none")
        told = sender.send(report(), Recipients(emails=["gone@team.example", "anna@team.example"]))
    assert [one.ok for one in told] == [False, True]
    assert "no such person" in told[0].answer


def test_a_name_cannot_add_a_header() -> None:
    named = report().model_copy(update={"title": "Night\r\nBcc: thief@evil.example"})
    with mail_server() as (mailbox, port):
        sender = post(smtp_host="127.0.0.1", smtp_port=port, smtp_security="none")
        (told,) = sender.send(named, Recipients(emails=["anna@team.example"]))
    assert told.ok
    assert mailbox.messages[0]["Bcc"] is None


@pytest.mark.parametrize("host", ["127.0.0.1", "nowhere.invalid"])
def test_a_server_that_is_not_there_is_told(host: str) -> None:
    sender = post(smtp_host=host, smtp_port=9, smtp_security="none")
    (told,) = sender.send(report(), Recipients(emails=["anna@team.example"]))
    assert not told.ok
