"""Real receivers on this machine: an HTTP server that answers what it is told, and an SMTP server."""

import datetime
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.servers import free_port

USER, PASSWORD = "asap", "right"


class Hook:
    def __init__(self) -> None:
        self.answers: list[int] = []
        """Statuses of the next answers; then 200."""
        self.got: list[tuple[str, dict[str, str], bytes]] = []
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hook.got.append((self.path, dict(self.headers), body))
                self.send_response(hook.answers.pop(0) if hook.answers else 200)
                self.send_header("Location", hook.url)  # of a redirection, which nobody may follow
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "Hook":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class Mailbox:
    """What aiosmtpd hands over."""

    def __init__(self) -> None:
        self.messages: list[EmailMessage] = []
        self.refuses: list[str] = []

    async def handle_RCPT(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if address in self.refuses:
            return "550 no such person here"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        assert isinstance(envelope.content, bytes)
        message: Any = message_from_bytes(envelope.content, policy=policy.default)
        self.messages.append(message)
        return "250 OK"


def _login(server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: object) -> AuthResult:
    ok = isinstance(data, LoginPassword) and (data.login, data.password) == (USER.encode(), PASSWORD.encode())
    return AuthResult(success=ok, handled=False)


@contextmanager
def mail_server(folder: Path | None = None) -> Iterator[tuple[Mailbox, int]]:
    """With a folder: STARTTLS and a password are demanded, and the certificate is written there."""
    mailbox = Mailbox()
    options: dict[str, Any] = {}
    if folder is not None:
        options = {
            "tls_context": _context(folder), "require_starttls": True, "auth_required": True,
            "authenticator": _login,
        }  # fmt: skip
    port = free_port()  # aiosmtpd wants to know it before it listens
    controller = Controller(mailbox, hostname="127.0.0.1", port=port, ready_timeout=30, **options)
    controller.start()
    try:
        yield mailbox, port
    finally:
        controller.stop()


def _context(folder: Path) -> ssl.SSLContext:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    (folder / "key.pem").write_bytes(private)
    (folder / "cert.pem").write_bytes(built.public_bytes(serialization.Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context
