"""deploy/nginx.conf as nginx runs it, before a real server: slow clients stay with the proxy."""

import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.integration.service.api_process import ApiProcess, api_process, asap
from tests.integration.service.at_work import wait_for
from tests.servers import free_port
from tests.unit.deploy.reading import DEPLOY

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
HOST = "asap.example.com"
WHOLE = """\
daemon off;
error_log {folder}/error.log;
pid {folder}/nginx.pid;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/asap.conf;
}}
"""
SLOW = f"POST /v1/predict HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 100000\r\n\r\n{{".encode()

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(NGINX is None, reason="nginx is not installed (Debian: apt install nginx)"),
]


@dataclass(frozen=True)
class Proxied:
    port: int
    api: ApiProcess
    key: str

    def client(self, address: str = "127.0.0.1") -> httpx.Client:
        transport = httpx.HTTPTransport(verify=False, local_address=address)
        headers = {"Host": HOST, "Authorization": f"Bearer {self.key}"}
        return httpx.Client(transport=transport, base_url=f"https://127.0.0.1:{self.port}", headers=headers)

    def connection(self, address: str) -> socket.socket:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        plain = socket.create_connection(("127.0.0.1", self.port), 20, (address, 0))
        return context.wrap_socket(plain, server_hostname=HOST)


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    folder, port = tmp_path_factory.mktemp("nginx"), free_port()
    key = asap(folder, "keys", "add", "somebody", "--scope", "operator").stdout.split()[-1]
    with api_process(folder, "--role", "api", proxies='["127.0.0.1"]', requests_per_minute=300) as api:
        make_certificate(folder)
        stated = (DEPLOY / "nginx.conf").read_text()
        for given, here in (
            ("127.0.0.1:8000", f"127.0.0.1:{api.port}"),
            ("listen 80;", f"listen 127.0.0.1:{free_port()};"),
            ("listen 443 ssl;", f"listen 127.0.0.1:{port} ssl;"),
            ("/etc/ssl/", f"{folder}/"),
        ):
            assert given in stated
            stated = stated.replace(given, here)
        (folder / "asap.conf").write_text(stated)
        (folder / "nginx.conf").write_text(
            ("user root;\n" if os.getuid() == 0 else "") + WHOLE.format(folder=folder)
        )
        command = [str(NGINX), "-p", str(folder), "-c", str(folder / "nginx.conf")]
        with subprocess.Popen(command) as nginx:
            try:
                wait_for(lambda: is_listening(port), 20)
                yield Proxied(port, api, key)
            finally:
                nginx.terminate()


def make_certificate(folder: Path) -> None:
    names = ["-subj", f"/CN={HOST}", "-keyout", str(folder / "asap.key"), "-out", str(folder / "asap.crt")]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names]
    subprocess.run(command, check=True, capture_output=True)


def is_listening(port: int) -> bool:
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_requests_uploads_and_events_pass(proxied: Proxied) -> None:
    with proxied.client() as client:
        assert client.get("/healthz").json()["status"] == "ok"
        assert client.get("/metrics").status_code == 404
        trace = client.post("/v1/traces", json={}).json()["id"]
        path = f"/v1/traces/{trace}/files/rank0.json"
        assert client.put(path, content=b"x" * (3 << 20)).json()["received_bytes"] == 3 << 20
        assert client.post("/v1/predict", content=b" " * (3 << 20)).status_code == 413, (
            "only uploads are long"
        )


def test_the_server_hears_who_calls_and_not_who_the_client_says_it_is(proxied: Proxied) -> None:
    """A caller of its own for the limit of guesses: the proxy's address would be everyone's."""
    wrong = {"Authorization": "Bearer wrong", "X-Forwarded-For": "10.9.8.7"}
    with proxied.client("127.0.0.9") as client:
        assert client.get("/v1/sessions", headers=wrong).status_code == 401
    with proxied.client("127.0.0.8") as client:
        statuses = [client.get("/v1/sessions", headers=wrong).status_code for _ in range(60)]
    assert 429 in statuses, "the limit was not reached"
    with proxied.client("127.0.0.9") as client:
        assert client.get("/v1/sessions", headers=wrong).status_code == 401


def test_slow_clients_stay_with_the_proxy(proxied: Proxied) -> None:
    """None of them reaches the server, and those of other addresses are answered."""
    with ExitStack() as stack:
        for _ in range(90):
            stack.enter_context(proxied.connection("127.0.0.3")).sendall(SLOW)
        other = stack.enter_context(proxied.connection("127.0.0.2"))
        other.sendall(f"GET /healthz HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode())
        assert b"200 OK" in other.recv(1000)
        for _ in range(20):
            stack.enter_context(proxied.connection("127.0.0.3")).sendall(SLOW)
        one_more = stack.enter_context(proxied.connection("127.0.0.3"))
        one_more.sendall(SLOW)
        assert b"429" in one_more.recv(1000), "an address has at most 100"
        assert all(line.get("path") != "/v1/predict" for line in proxied.api.log_lines())
