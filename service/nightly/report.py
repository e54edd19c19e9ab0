"""A night's report: as Markdown, as HTML pages without script, as files in a folder; delivered by webhook,
Slack and e-mail.
"""

import hashlib
import http.client
import json
import logging
import os
import re
import smtplib
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import formatdate
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from jinja2 import Environment
from markupsafe import Markup

from service.addresses import RefusedAddressError
from service.db.schedules import Delivery
from service.nightly.config import Recipients
from service.render import nightly as words
from service.render.report import content_security_policy, html_environment, render_markdown, stylesheet
from service.render.text import plain, sentence
from service.render.trends import HEIGHT, LEFT, RIGHT, TOP, WIDTH, plots_of, spark_points
from service.settings import Settings
from service.worker.webhooks import NotDeliveredError, post, signed_headers
from tools.errors import InputError
from tools.nightly.result import NightReport, NightResult

INDEX = "index.html"
PAGES = "workloads"
TRENDS = "nightly.css"
SHAPE = {"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": WIDTH - RIGHT, "top": TOP}
Links = Callable[[str], str | None]
"""From the name of a workload to its page."""
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


def markdown_overview(report: NightReport) -> str:
    return render_markdown("overview.md.jinja", report=report, words=words)


def markdown_workload(result: NightResult, at: float) -> str:
    return render_markdown("workload.md.jinja", result=result, at=at, words=words)


def html_overview(report: NightReport, links: Links = lambda _: None) -> str:
    plots = {
        result.name: plots_of(result)[0]
        for result in report.workloads
        if result.is_changed and plots_of(result)
    }
    return _render_html("overview.html.jinja", report=report, links=links, plots=plots)


def html_workload(result: NightResult, at: float, title: str, overview: str | None = None) -> str:
    """`title` and `overview` are the name and the address of the page that lists all workloads."""
    plots = plots_of(result)
    return _render_html(
        "workload.html.jinja", result=result, at=at, title=title, plots=plots, overview=overview
    )


def _render_html(template: str, **content: object) -> str:
    style, policy = Markup(stylesheet(TRENDS)), page_policy()
    page = _html_environment().get_template(template)
    return page.render(words=words, shape=SHAPE, style=style, policy=policy, **content)


@cache
def _html_environment() -> Environment:
    environment = html_environment()
    environment.filters |= {"spark": spark_points, "class": page_name}
    return environment


def page_policy() -> str:
    """What servers send as the header Content-Security-Policy with these pages."""
    return content_security_policy(stylesheet(TRENDS))


def page_name(workload: str) -> str:
    """A file's name; names of workloads are checked, those of old records may be anything."""
    return _UNSAFE.sub("_", workload).lstrip(".") or "_"


def write_report(report: NightReport, folder: Path) -> Path:
    """Leaves other files of the folder alone; returns the page to open, which is written last."""
    try:
        (folder / PAGES).mkdir(parents=True, exist_ok=True)
        for name, text in _documents(report).items():
            _write(folder / name, text)
    except OSError as error:
        raise InputError("report", str(folder), f"cannot be written: {error.strerror or error}") from None
    return folder / INDEX


def find_page(folder: Path) -> Path | None:
    """The page of an earlier report in the folder."""
    return page if (page := folder / INDEX).is_file() else None


def _documents(report: NightReport) -> dict[str, str]:
    documents = {
        "report.md": markdown_overview(report),
        "report.json": report.model_dump_json() + "\n",
    }
    for result in report.workloads:
        page = f"{PAGES}/{page_name(result.name)}"
        documents[f"{page}.html"] = html_workload(result, report.at, report.title, f"../{INDEX}")
        documents[f"{page}.md"] = markdown_workload(result, report.at)
    return {**documents, INDEX: html_overview(report, lambda name: f"{PAGES}/{page_name(name)}.html")}


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


MAX_STORIES = 20
"""Slack accepts at most 50 blocks per message."""
MAX_CHARACTERS = 2900
"""Slack accepts 3,000 per block."""
STORIES = ("regressed", "broken", "slower", "suspected", "notice", "recovered")
TIMEOUT_S = 20.0
MAX_SUBJECT_CHARACTERS = 150
MAX_ATTEMPTS = 4
FIRST_BACKOFF_S = 1.0

_log = logging.getLogger(__name__)


class NoMailError(Exception):
    """This installation cannot send mail."""


PERMANENT = (InputError, RefusedAddressError, NoMailError)
TRANSIENT = (OSError, http.client.HTTPException, NotDeliveredError, UnicodeError)


def chat_message(report: NightReport, link: str | None = None) -> bytes:
    title = f"{report.title}, {words.day(report.at)}"
    lines = [f"*{escape(title)}*", escape(sentence(report.summary))]
    if report.lost_device_hours_per_day >= 1:
        lines.append(f"{words.hours(7 * report.lost_device_hours_per_day)} device-hours per week are lost")
    stories = [_story(result) for result in report.workloads if result.status in STORIES]
    texts = ["\n".join(lines), *stories[:MAX_STORIES]]
    if len(stories) > MAX_STORIES:
        texts.append(f"and {len(stories) - MAX_STORIES} more")
    if link:
        texts.append(f"<{link}|The whole report>")
    blocks = [{"type": "section", "text": {"type": "mrkdwn", "text": _shorten(text)}} for text in texts]
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


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 1] + "…"


def escape(value: object) -> str:
    """As Slack requires; stars and the like only change how a text looks."""
    return plain(value).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def send_mail(settings: Settings, to: str, report: NightReport, id: str) -> str:
    """The server's answer. Raises OSError, which smtplib's errors are too."""
    if settings.smtp_host is None or settings.smtp_from is None:
        raise NoMailError("no mail server is set: ASAP_SMTP_HOST and ASAP_SMTP_FROM")
    message = make_message(settings.smtp_from, to, report, id)
    with _connect(settings) as server:
        refused = server.send_message(message)
    if refused:
        raise smtplib.SMTPRecipientsRefused(refused)
    return "accepted by the mail server"


def make_message(sender: str, to: str, report: NightReport, id: str) -> EmailMessage:
    message = EmailMessage()
    subject = f"{report.title}, {words.day(report.at)}: {report.summary}"
    message["Subject"] = plain(subject)[:MAX_SUBJECT_CHARACTERS]
    message["From"], message["To"] = address(sender, "ASAP_SMTP_FROM"), address(to, "emails")
    message["Date"] = formatdate(report.made_at)
    digest = hashlib.sha256(f"{id}\0{to}".encode()).hexdigest()[:32]
    message["Message-ID"] = f"<{digest}@{sender.rpartition('@')[2].strip('> ')}>"
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(markdown_overview(report))
    message.add_alternative(html_overview(report), subtype="html")
    return message


def address(text: str, field: str) -> Address:
    """Raises InputError: only a valid address may reach a header."""
    name, _, rest = text.rpartition("<")
    try:
        return Address(display_name=name.strip(), addr_spec=rest.strip("> "))
    except (ValueError, IndexError) as error:
        raise InputError(field, text, f"must be an e-mail address: {error}") from None


def _connect(settings: Settings) -> smtplib.SMTP:
    """Encrypted, unless the installation is configured otherwise; a wrong certificate is an error."""
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
        return [
            done.get((kind, to)) or self._deliver(kind, to, send)
            for kind, to, send in self._senders(report, recipients)
        ]

    def _senders(
        self, report: NightReport, recipients: Recipients
    ) -> list[tuple[str, str, Callable[[], str]]]:
        hooks, chats = _number_addresses(recipients.webhooks), _number_addresses(recipients.slack)
        return [
            *(("webhook", label, self._hook(label, url, report)) for label, url in hooks),
            *(("slack", label, self._chat(url, report)) for label, url in chats),
            *(("email", to, self._mail(to, report)) for to in recipients.emails),
        ]

    def _hook(self, label: str, url: str, report: NightReport) -> Callable[[], str]:
        def send() -> str:
            secret = self.settings.webhook_secret
            if secret is None:
                raise InputError("webhooks", "an address", "no ASAP_WEBHOOK_SECRET is set to sign with")
            id = f"{self.run_id}.{label.partition(':')[0]}"
            payload = report.model_dump(mode="json")
            content = {"id": id, "event": "nightly", "link": self.link, "report": payload}
            body = json.dumps(content, allow_nan=False).encode()
            signed = signed_headers(secret.get_secret_value().encode(), id, body)
            return post(url, body, signed, self.settings.webhook_private)

        return send

    def _chat(self, url: str, report: NightReport) -> Callable[[], str]:
        return lambda: post(url, chat_message(report, self.link), {}, self.settings.webhook_private)

    def _mail(self, to: str, report: NightReport) -> Callable[[], str]:
        return lambda: send_mail(self.settings, to, report, self.run_id)

    def _deliver(self, kind: str, to: str, send: Callable[[], str]) -> Delivery:
        """Retries transient errors with exponential backoff."""
        for attempt in range(1, self.max_attempts + 1):
            try:
                return Delivery(kind=kind, to=to, ok=True, answer=send(), at=time.time())
            except (*PERMANENT, *TRANSIENT) as error:
                if attempt == self.max_attempts or _is_permanent(error):
                    return self._failure(kind, to, error)
                self.sleep(FIRST_BACKOFF_S * 2 ** (attempt - 1))
        raise AssertionError("a delivery ends with its last attempt")

    def _failure(self, kind: str, to: str, error: Exception) -> Delivery:
        # An InputError repeats the value, which here is an address.
        answer = error.allowed if isinstance(error, InputError) else str(error) or type(error).__name__
        _log.warning("could not deliver the report to %s %s: %s", kind, to, answer)
        return Delivery(kind=kind, to=to, ok=False, answer=answer[:500], at=time.time())


def _is_permanent(error: Exception) -> bool:
    """A mail server's 5xx or a wrong certificate: a retry would fail again."""
    if isinstance(error, smtplib.SMTPResponseException):
        return error.smtp_code >= 500
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return all(code >= 500 for code, _ in error.recipients.values())
    return isinstance(error, (*PERMANENT, ssl.SSLCertVerificationError, smtplib.SMTPNotSupportedError))


def _number_addresses(urls: Sequence[str]) -> list[tuple[str, str]]:
    """What may be shown of each address, and the address: it may hold a token."""
    return [(f"{number}: {_host(url)}", url) for number, url in enumerate(urls, start=1)]


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or "an address"
    except ValueError:
        return "an address"
