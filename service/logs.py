"""Structured logs: one JSON object per line, with the request id and without secrets."""

import json
import logging
import re
import sys
from collections.abc import Iterable
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TextIO

from pydantic import SecretStr

from service.settings import Settings

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
"""Names the request that is being answered; threads that work for it see it too."""

HIDDEN = "[hidden]"
_SHORTEST_SECRET = 6
"""A shorter value would also redact ordinary words."""
_PATTERNS = (
    re.compile(r"asap_[0-9a-f]{6,}_[A-Za-z0-9_-]+"),
    re.compile(r"(?<=Bearer )[A-Za-z0-9._~+/=-]{6,}", re.IGNORECASE),
    re.compile(r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*"),
    re.compile(r"(?<=://)[^\s/@]*:[^\s/@]*(?=@)"),
    re.compile(r"\bsk-[A-Za-z0-9_-]{8,}"),
)
_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message", "taskName"}


class Redactor:
    """Redacts what looks like a credential, and the secrets of this installation wherever they occur."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = [secret for secret in secrets if len(secret) >= _SHORTEST_SECRET]
        escaped = [json.dumps(secret)[1:-1] for secret in known]  # as it stands in a line of JSON
        self._secrets = sorted({*known, *escaped}, key=len, reverse=True)

    def clean(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        for pattern in _PATTERNS:
            text = pattern.sub(HIDDEN, text)
        return text


def secrets_of(settings: Settings) -> list[str]:
    values = (getattr(settings, name) for name in type(settings).model_fields)
    return [value.get_secret_value() for value in values if isinstance(value, SecretStr)]


class JsonFormatter(logging.Formatter):
    """Whatever is passed as `extra` becomes a field of its own."""

    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (own := request_id.get()) is not None:
            line["request_id"] = own
        line |= {name: value for name, value in vars(record).items() if name not in _PLAIN}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        # Cleaned after encoding: escapes do not occur inside what the patterns look for.
        return self._redactor.clean(json.dumps(line, default=str, ensure_ascii=True))


def configure_logs(settings: Settings, stream: TextIO | None = None) -> None:
    """Sends everything that any library logs through the formatter; to standard error by default."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(Redactor(secrets_of(settings))))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(settings.log_level.upper())
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logging.getLogger(name).handlers = []
        logging.getLogger(name).propagate = True
    # These speak at every request or statement; ours says the same once.
    for name in ("uvicorn.access", "httpx", "httpcore", "alembic", "chromadb.telemetry"):
        logging.getLogger(name).setLevel(logging.WARNING)
