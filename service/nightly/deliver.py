"""Delivers a night's report: webhook, Slack, e-mail."""

import hashlib
import http.client
import json
import logging
import smtplib
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import formatdate
from typing import Any
from urllib.parse import urlsplit

from service.addresses import RefusedAddressError
from service.nightly.config import Recipients
from service.nightly.report import html_overview, markdown_overview
from service.nightly.review import QUIET
from service.render import terms as words
from service.render.text import plain, sentence
from service.settings import Settings
from service.worker.webhooks import NotDeliveredError, post, signed_headers
from tools.errors import InputError

Data = Mapping[str, Any]
MOST_STORIES = 20
"""A message has at most 50 blocks."""
MOST_CHARACTERS = 2900
"""Of a block: 3,000."""


def chat_message(report: Data, link: str | None = None) -> bytes:
    title = f"{report['title']}, {words.day(report['at'])}"
    lines = [f"*{escape(title)}*", escape(sentence(report["summary"]))]
    if report["lost_device_hours_per_day"] >= 1:
        lines.append(f"{words.hours(report['lost_device_hours_per_day'])} device-hours a day are lost")
    blocks = [_block("\n".join(lines))]
    told = [one for one in report["workloads"] if one["status"] in STORIES]
    blocks += [_block(_story(one)) for one in told[:MOST_STORIES]]
    if len(told) > MOST_STORIES:
        blocks.append(_block(f"and {len(told) - MOST_STORIES} more"))
    if link:
        blocks.append(_block(f"<{link}|The whole report>"))
    return json.dumps({"text": escape(f"{title}: {report['summary']}"), "blocks": blocks}).encode()


STORIES = ("regressed", "broken", "slower", "suspected", "notice", "recovered")


def _story(said: Data) -> str:
    lines = [f"*{escape(said['name'])}*: {words.STATUS[said['status']]}"]
    if said["reason"]:
        lines.append(escape(sentence(said["reason"])))
    if said["status"] != "broken":
        lines += [f"• {escape(words.sentence(one))}" for one in said["findings"][:3]]
        lines += [f"• {escape(one)}" for one in words.causes(said)[:2]] if said["findings"] else []
        lines += [f"→ {escape(one)}" for one in said["advice"][:1]]
    return "\n".join(lines)


def _block(text: str) -> dict[str, Any]:
    shown = text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"
    return {"type": "section", "text": {"type": "mrkdwn", "text": shown}}


def escape(value: object) -> str:
    """As Slack asks for it; stars and the like only change how a text looks."""
    return plain(value).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


TIMEOUT_S = 20.0
MOST_SUBJECT = 150


class NoMailError(Exception):
    """This installation cannot send mail."""


def send_mail(settings: Settings, to: str, report: Mapping[str, Any], id: str) -> str:
    """What the server answered. Raises OSError or smtplib's errors, which are OSErrors."""
    if settings.smtp_host is None or settings.smtp_from is None:
        raise NoMailError("no mail server is set: ASAP_SMTP_HOST and ASAP_SMTP_FROM")
    message = make_message(settings.smtp_from, to, report, id)
    with _connect(settings) as server:
        refused = server.send_message(message)
    if refused:
        raise smtplib.SMTPRecipientsRefused(refused)
    return "accepted by the mail server"


def make_message(sender: str, to: str, report: Mapping[str, Any], id: str) -> EmailMessage:
    message = EmailMessage()
    subject = f"{report['title']}, {words.day(report['at'])}: {report['summary']}"
    message["Subject"] = plain(subject)[:MOST_SUBJECT]
    message["From"], message["To"] = address(sender, "ASAP_SMTP_FROM"), address(to, "emails")
    message["Date"] = formatdate(report["made_at"])
    digest = hashlib.sha256(f"{id}\0{to}".encode()).hexdigest()[:32]
    message["Message-ID"] = f"<{digest}@{sender.rpartition('@')[2].strip('> ')}>"
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(markdown_overview(report))
    message.add_alternative(html_overview(report), subtype="html")
    return message


def address(text: str, field: str) -> Address:
    """Raises InputError: what is no address must not reach a header."""
    name, _, rest = text.rpartition("<")
    try:
        return Address(display_name=name.strip(), addr_spec=rest.strip("> "))
    except (ValueError, IndexError) as error:
        raise InputError(field, text, f"must be an e-mail address: {error}") from None


def _connect(settings: Settings) -> smtplib.SMTP:
    """Encrypted, unless the installation says otherwise; a certificate that is wrong ends it."""
    host, port = str(settings.smtp_host), settings.smtp_port
    context = ssl.create_default_context(cafile=settings.smtp_ca_file)
    if settings.smtp_security == "tls":
        server: smtplib.SMTP = smtplib.SMTP_SSL(host, port, timeout=TIMEOUT_S, context=context)
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
    return server


TRIES = 4
FIRST_PAUSE_S = 1.0
FINAL = (InputError, RefusedAddressError, NoMailError)
PASSING = (OSError, http.client.HTTPException, NotDeliveredError, UnicodeError)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Delivered:
    """What became of one recipient."""

    kind: str
    to: str
    ok: bool
    answer: str
    at: float


@dataclass(frozen=True)
class Post:
    settings: Settings
    run_id: str
    link: str | None = None
    """Of the report, where it can be looked at."""
    pause: Callable[[float], None] = time.sleep
    tries: int = TRIES

    def send(
        self, report: Mapping[str, Any], recipients: Recipients, sent: Sequence[Mapping[str, Any]] = ()
    ) -> list[dict[str, Any]]:
        """To all who have not got it; `sent` is what an earlier try gave back."""
        if recipients.when == "alarm" and report["outcome"] == QUIET:
            return []
        done = {(one["kind"], one["to"]): dict(one) for one in sent if one["ok"]}
        return [
            done.get((kind, shown)) or asdict(self._try(kind, shown, work))
            for kind, shown, work in self._wanted(report, recipients)
        ]

    def _wanted(
        self, report: Mapping[str, Any], recipients: Recipients
    ) -> list[tuple[str, str, Callable[[], str]]]:
        hooks, chats = _numbered(recipients.webhooks), _numbered(recipients.slack)
        return [
            *(("webhook", shown, self._hook(shown, url, report)) for shown, url in hooks),
            *(("slack", shown, self._chat(url, report)) for shown, url in chats),
            *(("email", to, self._mail(to, report)) for to in recipients.emails),
        ]

    def _hook(self, shown: str, url: str, report: Mapping[str, Any]) -> Callable[[], str]:
        def work() -> str:
            secret = self.settings.webhook_secret
            if secret is None:
                raise InputError("webhooks", "an address", "no ASAP_WEBHOOK_SECRET is set to sign with")
            id = f"{self.run_id}.{shown.partition(':')[0]}"
            content = {"id": id, "event": "nightly", "link": self.link, "report": report}
            body = json.dumps(content, allow_nan=False).encode()
            signed = signed_headers(secret.get_secret_value().encode(), id, body)
            return post(url, body, signed, self.settings.webhook_private)

        return work

    def _chat(self, url: str, report: Mapping[str, Any]) -> Callable[[], str]:
        return lambda: post(url, chat_message(report, self.link), {}, self.settings.webhook_private)

    def _mail(self, to: str, report: Mapping[str, Any]) -> Callable[[], str]:
        return lambda: send_mail(self.settings, to, report, self.run_id)

    def _try(self, kind: str, shown: str, work: Callable[[], str]) -> Delivered:
        """Again with growing pauses, where that may help."""
        for attempt in range(1, self.tries + 1):
            try:
                return Delivered(kind, shown, True, work(), time.time())
            except (*FINAL, *PASSING) as error:
                if attempt == self.tries or _is_final(error):
                    return self._failed(kind, shown, error)
                self.pause(FIRST_PAUSE_S * 2 ** (attempt - 1))
        raise AssertionError("a delivery ends by its last try")

    def _failed(self, kind: str, shown: str, error: Exception) -> Delivered:
        # An InputError repeats what was given: here an address.
        answer = error.allowed if isinstance(error, InputError) else str(error) or type(error).__name__
        _log.warning("the report did not reach %s %s: %s", kind, shown, answer)
        return Delivered(kind, shown, False, answer[:500], time.time())


def _is_final(error: Exception) -> bool:
    """A mail server's 5xx and a wrong certificate do not get better by waiting."""
    if isinstance(error, smtplib.SMTPResponseException):
        return error.smtp_code >= 500
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return all(code >= 500 for code, _ in error.recipients.values())
    return isinstance(error, (*FINAL, ssl.SSLCertVerificationError, smtplib.SMTPNotSupportedError))


def _numbered(urls: Sequence[str]) -> list[tuple[str, str]]:
    """What may be told of each address, and the address."""
    return [(f"{number}: {_host(url)}", url) for number, url in enumerate(urls, start=1)]


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or "an address"
    except ValueError:
        return "an address"
