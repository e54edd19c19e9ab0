"""Sends a report to everybody who wants it, each try by itself, and says what became of each.

What was delivered before is not sent again when a run is repeated. Addresses of webhooks may hold a token:
only their host is told.
"""

import http.client
import json
import logging
import smtplib
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

from service.nightly.definition import Recipients
from service.nightly.deliver.chat import chat_message
from service.nightly.deliver.mail import NoMailError, send_mail
from service.nightly.night import QUIET
from service.settings import Settings
from service.work.addresses import RefusedAddressError
from service.work.webhooks import NotDeliveredError, post, signed_headers
from tools.errors import InputError

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
