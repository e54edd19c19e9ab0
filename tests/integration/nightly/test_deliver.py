"""A report reaches real receivers: signed, by mail with and without TLS, and nobody gets it twice."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from service.jobs.webhooks import signature
from service.schedules.config import Recipients
from service.schedules.deliver import ReportSender
from service.schedules.model import Delivery
from service.settings import Settings
from tests.integration.nightly.receivers import PASSWORD, USER, Hook, mail_server
from tools.nightly.result import NightReport, NightResult, report_of

SECRET = "shared"
SENDER = "ASAP <asap@cluster.example>"
ANNA = ["anna@team.example"]
AT = 1_790_000_000.0


def make_report(status: str = "quiet", title: str = "Nightly report") -> NightReport:
    result = NightResult(name="llama", status=status, is_alarm=status == "regressed", hours_per_day=24.0)
    return report_of([result], title, AT, "r1", "0.2.0", AT)


def send(
    report: NightReport | None = None,
    waits: list[float] | None = None,
    earlier: Sequence[Delivery] = (),
    settings: dict[str, Any] | None = None,
    **recipients: Any,  # noqa: ANN401 - fields of Recipients
) -> list[Delivery]:
    options = {"webhook_secret": SECRET, "webhook_private": True, "smtp_from": SENDER, **(settings or {})}
    sleep = (waits if waits is not None else []).append
    sender = ReportSender(Settings(**options, _env_file=None), "r1", "https://asap.example/r1", sleep)
    return sender.send(report or make_report(), Recipients(**recipients), earlier)


def mail(port: int, host: str = "127.0.0.1", **options: Any) -> dict[str, Any]:  # noqa: ANN401 - fields of Settings
    return {"smtp_host": host, "smtp_port": port, "smtp_security": "none", **options}


def test_webhooks_are_signed_hold_the_report_and_are_deliveries_of_their_own() -> None:
    with Hook() as hook:
        first, _ = send(webhooks=[f"{hook.url}/night?x=1", f"{hook.url}/b"])
        (path, headers, body), (_, other, _) = hook.got
    assert (first.ok, first.answer, first.to) == (True, "200 OK", "1: 127.0.0.1")
    assert path == "/night?x=1"
    expected = signature(SECRET.encode(), headers["X-Asap-Timestamp"], body)
    assert headers["X-Asap-Signature"] == f"sha256={expected}"
    content = json.loads(body)
    assert (content["event"], content["report"]["run_id"]) == ("nightly", "r1")
    assert content["id"] == headers["X-Asap-Delivery"] != other["X-Asap-Delivery"]


@pytest.mark.parametrize("wrong", ["http://hooks.example/T0 B0/token", "ftp://hooks.example/token"])
def test_a_wrong_address_is_not_shown_with_its_token(wrong: str, caplog: pytest.LogCaptureFixture) -> None:
    (delivery,) = send(slack=[wrong])
    assert (delivery.ok, delivery.answer.startswith("must be")) == (False, True)
    assert "token" not in delivery.model_dump_json() + caplog.text


@pytest.mark.parametrize(
    ("answers", "ok", "answer", "backoffs_s"),
    [
        ([503, 502], True, "200 OK", [1.0, 2.0]),
        ([500] * 9, False, "500 Internal Server Error", [1.0, 2.0, 4.0]),
    ],
)
def test_a_busy_receiver_is_retried_and_given_up_in_the_end(
    answers: list[int], ok: bool, answer: str, backoffs_s: list[float]
) -> None:
    waits: list[float] = []
    with Hook() as hook:
        hook.answers = answers
        (delivery,) = send(waits=waits, slack=[hook.url])
    assert (delivery.ok, delivery.answer, waits) == (ok, answer, backoffs_s)
    assert len(hook.got) == len(backoffs_s) + 1


def test_without_a_secret_or_a_mail_server_the_reason_is_stated() -> None:
    settings = {"webhook_secret": None}
    hook, message = send(settings=settings, webhooks=["http://127.0.0.1:9"], emails=ANNA)
    assert "ASAP_WEBHOOK_SECRET" in hook.answer
    assert "ASAP_SMTP_HOST" in message.answer


def test_who_got_the_report_does_not_get_it_again_when_a_run_is_repeated() -> None:
    with Hook() as good, Hook() as bad:
        bad.answers = [500] * 4
        first = send(webhooks=[good.url, bad.url])
        second = send(earlier=first, webhooks=[good.url, bad.url])
    assert [[delivery.ok for delivery in attempt] for attempt in (first, second)] == [
        [True, False],
        [True, True],
    ]
    assert (len(good.got), len(bad.got)) == (1, 5)


def test_mail_has_text_and_html_a_stable_id_and_no_header_of_a_name() -> None:
    report = make_report("regressed", "Night\r\nBcc: thief@evil.example")
    with mail_server() as (mailbox, port):
        for _ in range(2):
            (delivery,) = send(report, settings=mail(port), emails=ANNA)
            assert delivery.ok, delivery
    first, second = mailbox.messages
    assert (first["Message-ID"], first["Bcc"]) == (second["Message-ID"], None)
    assert (first["To"], first["From"]) == (ANNA[0], SENDER)
    assert first["Subject"].startswith("Night")
    assert "2026-09-21: 1 workload: 1 got slower" in first["Subject"]
    text, html = (first.get_body((kind,)) for kind in ("plain", "html"))
    assert text is not None
    assert html is not None
    assert "| llama | got slower |" in text.get_content()
    assert "<h1>Night" in html.get_content()


def test_mail_goes_through_a_server_that_requires_encryption_and_a_password(tmp_path: Path) -> None:
    waits: list[float] = []
    trusted = {"smtp_ca_file": tmp_path / "cert.pem"}
    with mail_server(tmp_path) as (mailbox, port):
        login = mail(port, smtp_security="starttls", smtp_user=USER)
        deliveries = [
            send(waits=waits, settings={**login, **options}, emails=ANNA)[0]
            for options in (
                {**trusted, "smtp_password": PASSWORD},
                {**trusted, "smtp_password": "wrong"},
                {"smtp_password": PASSWORD},
            )
        ]
    assert [delivery.ok for delivery in deliveries] == [True, False, False]
    assert deliveries[1].answer.startswith("(535")
    assert "certificate" in deliveries[2].answer.lower()
    assert (waits, len(mailbox.messages)) == ([], 1)  # neither failure goes away by waiting
