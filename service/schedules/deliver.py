"""Delivers a night's report by webhook, Slack and e-mail, with retries."""

import hashlib
import http.client
import json
import logging
import smtplib
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import formatdate
from functools import partial
from urllib.parse import urlsplit

from service.addresses import RefusedAddressError
from service.jobs.webhooks import NotDeliveredError, post, signed_headers
from service.render import nightly as words
from service.render.text import plain, sentence
from service.schedules.config import Recipients
from service.schedules.model import Delivery
from service.schedules.report import html_overview, markdown_overview
from service.settings import Settings
from tools.errors import InputError
from tools.nightly.result import NightReport, NightResult

MAX_STORIES = 20
"""Slack accepts at most 50 blocks per message."""
MAX_CHARACTERS = 2900
"""Slack accepts 3,000 per block."""
STORIES = ("regressed", "broken", "slower", "suspected", "notice", "recovered")
TIMEOUT_S = 20.0
MAX_SUBJECT_CHARACTERS = 150
MAX_ATTEMPTS = 4
FIRST_BACKOFF_S = 1.0
PERMANENT = (InputError, RefusedAddressError, ssl.SSLCertVerificationError, smtplib.SMTPNotSupportedError)
TRANSIENT = (OSError, http.client.HTTPException, NotDeliveredError, UnicodeError)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ReportSender:
    settings: Settings
    run_id: str
    link: str | None = None
    """To the report, if it is served somewhere."""
    sleep: Callable[[float], None] = time.sleep
    max_attempts: int = MAX_ATTEMPTS

    def send(
        self, report: NightReport, recipients: Recipients, earlier: Sequence[Delivery] = ()
    ) -> list[Delivery]:
        """To all who have not received it: `earlier` is what an interrupted attempt returned."""
        if recipients.when == "alarm" and report.outcome == "quiet":
            return []
        done = {(delivery.kind, delivery.to): delivery for delivery in earlier if delivery.ok}
        senders: list[tuple[str, str, Callable[[], str]]] = [
            *(
                ("webhook", f"{number}: {_host(url)}", partial(self._post_signed, number, url, report))
                for number, url in enumerate(recipients.webhooks, start=1)
            ),
            *(
                (
                    "slack",
                    f"{number}: {_host(url)}",
                    partial(self._post, url, chat_message(report, self.link)),
                )
                for number, url in enumerate(recipients.slack, start=1)
            ),
            *(
                ("email", to, partial(send_mail, self.settings, to, report, self.run_id))
                for to in recipients.emails
            ),
        ]
        return [done.get((kind, to)) or self._deliver(kind, to, send) for kind, to, send in senders]

    def _post(self, url: str, body: bytes, headers: Mapping[str, str] | None = None) -> str:
        return post(url, body, headers or {}, self.settings.webhook_private)

    def _post_signed(self, number: int, url: str, report: NightReport) -> str:
        secret = self.settings.webhook_secret
        if secret is None:
            raise InputError("webhooks", "an address", "no ASAP_WEBHOOK_SECRET is set to sign with")
        id = f"{self.run_id}.{number}"
        content = {
            "id": id,
            "event": "nightly",
            "text": words.in_one_line(report),
            "link": self.link,
            "report": report.model_dump(mode="json"),
        }
        body = json.dumps(content, allow_nan=False).encode()
        return self._post(url, body, signed_headers(secret.get_secret_value().encode(), id, body))

    def _deliver(self, kind: str, to: str, send: Callable[[], str]) -> Delivery:
        """Retries transient errors with exponential backoff."""
        for attempt in range(1, self.max_attempts + 1):
            try:
                return Delivery(kind=kind, to=to, ok=True, answer=send(), at=time.time())
            except (*PERMANENT, *TRANSIENT) as error:
                if attempt < self.max_attempts and not _is_permanent(error):
                    self.sleep(FIRST_BACKOFF_S * 2 ** (attempt - 1))
                    continue
                # An InputError repeats the value, which here is an address.
                answer = error.rule if isinstance(error, InputError) else str(error) or type(error).__name__
                _log.warning("could not deliver the report to %s %s: %s", kind, to, answer)
                return Delivery(kind=kind, to=to, ok=False, answer=answer[:500], at=time.time())
        raise AssertionError("a delivery ends with its last attempt")


def _host(url: str) -> str:
    """What may be shown of an address, which may hold a token."""
    try:
        return urlsplit(url).hostname or "an address"
    except ValueError:
        return "an address"


def _is_permanent(error: Exception) -> bool:
    """A mail server's 5xx or a wrong certificate: a retry would fail again."""
    if isinstance(error, smtplib.SMTPResponseException):
        return error.smtp_code >= 500
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return all(code >= 500 for code, _ in error.recipients.values())
    return isinstance(error, PERMANENT)


def chat_message(report: NightReport, link: str | None = None) -> bytes:
    if report.is_uneventful:
        line = escape(sentence(words.in_one_line(report)))
        text = f"<{link}|{line}>" if link else line
        block = {"type": "section", "text": {"type": "mrkdwn", "text": text[:MAX_CHARACTERS]}}
        return json.dumps({"text": line, "blocks": [block]}).encode()
    title = f"{report.title}, {words.day(report.at)}"
    lines = [f"*{escape(title)}*", escape(sentence(report.summary))]
    if report.lost_device_hours_per_day >= 1:
        lines.append(f"{words.hours(7 * report.lost_device_hours_per_day)} device-hours per week are lost")
    stories = [_story(result) for result in report.workloads if result.status in STORIES]
    texts = ["\n".join(lines), *stories[:MAX_STORIES]]
    texts += [f"and {len(stories) - MAX_STORIES} more"] if len(stories) > MAX_STORIES else []
    texts += [f"<{link}|The whole report>"] if link else []
    short = (text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 1] + "…" for text in texts)
    blocks = [{"type": "section", "text": {"type": "mrkdwn", "text": text}} for text in short]
    return json.dumps({"text": escape(f"{title}: {report.summary}"), "blocks": blocks}).encode()


def _story(result: NightResult) -> str:
    lines = [f"*{escape(result.name)}*: {words.STATUS[result.status]}"]
    if result.reason:
        lines.append(escape(sentence(result.reason)))
    if result.status != "broken":
        lines += [f"• {escape(words.sentence(finding))}" for finding in result.findings[:3]]
        lines += [f"• {escape(cause)}" for cause in words.causes(result)[:2]] if result.findings else []
        lines += [f"→ {escape(advice)}" for advice in result.advice[:1]]
    return "\n".join(lines)


def escape(value: object) -> str:
    """As Slack requires; stars and the like only change how a text looks."""
    return plain(value).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def send_mail(settings: Settings, to: str, report: NightReport, id: str) -> str:
    """The server's answer. Raises OSError, which smtplib's errors are too.

    Encrypted, unless the installation is configured otherwise; a wrong certificate is an error.
    """
    if settings.smtp_host is None or settings.smtp_from is None:
        raise InputError("emails", to, "no mail server is set: ASAP_SMTP_HOST and ASAP_SMTP_FROM")
    message = make_message(settings.smtp_from, to, report, id)
    context = ssl.create_default_context(cafile=settings.smtp_ca_file)
    host, port = settings.smtp_host, settings.smtp_port
    server: smtplib.SMTP
    if settings.smtp_security == "tls":
        server = smtplib.SMTP_SSL(host, port, timeout=TIMEOUT_S, context=context)
    else:
        server = smtplib.SMTP(host, port, timeout=TIMEOUT_S)
    try:
        if settings.smtp_security == "starttls":
            server.starttls(context=context)
        if settings.smtp_user:
            secret = settings.smtp_password
            server.login(settings.smtp_user, secret.get_secret_value() if secret else "")
    except BaseException:
        server.close()
        raise
    with server:
        if refused := server.send_message(message):
            raise smtplib.SMTPRecipientsRefused(refused)
    return "accepted by the mail server"


def make_message(sender: str, to: str, report: NightReport, id: str) -> EmailMessage:
    message = EmailMessage()
    message["Subject"] = words.in_one_line(report)[:MAX_SUBJECT_CHARACTERS]
    message["From"], message["To"] = address(sender, "ASAP_SMTP_FROM"), address(to, "emails")
    message["Date"] = formatdate(report.made_at)
    digest = hashlib.sha256(f"{id}\0{to}".encode()).hexdigest()[:32]
    message["Message-ID"] = f"<{digest}@{sender.rpartition('@')[2].strip('> ')}>"
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(markdown_overview(report))
    if not report.is_uneventful:
        message.add_alternative(html_overview(report), subtype="html")
    return message


def address(text: str, field: str) -> Address:
    """Raises InputError: only a valid address may reach a header."""
    name, _, rest = text.rpartition("<")
    try:
        return Address(display_name=name.strip(), addr_spec=rest.strip("> "))
    except (ValueError, IndexError) as error:
        raise InputError(field, text, f"must be an e-mail address: {error}") from None
