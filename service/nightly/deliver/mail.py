"""The report by e-mail: text and HTML in one message, through the installation's SMTP server.

The message's id is made of the run and the recipient, so that a message sent twice is shown once.
"""

import hashlib
import smtplib
import ssl
from collections.abc import Mapping
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import formatdate
from typing import Any

from service.nightly.report import words
from service.nightly.report.html import html_overview
from service.nightly.report.markdown import markdown_overview
from service.report.text import plain
from service.settings import Settings
from tools.errors import InputError

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
