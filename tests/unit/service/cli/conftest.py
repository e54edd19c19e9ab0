"""Fixtures that run `asap` in this process: alone, with data of its own, or with an API for a server."""

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from asap_client.client import Client
from service.cli import calibrate, schedule, sessions
from service.cli.main import main
from service.settings import load_settings
from tests.unit.service.cli.commands import Asap, Result
from tests.unit.service.served import Served

Connect = Callable[[httpx.BaseTransport], None]


@pytest.fixture
def asap(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Asap:
    def call(*words: object, stdin: bytes = b"") -> Result:
        written = []
        for number, word in enumerate(words):
            if not isinstance(word, str | Path):
                path = tmp_path / f"input-{number}.json"
                path.write_bytes(word if isinstance(word, bytes) else json.dumps(word).encode())
                word = path
            written.append(str(word))
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        return Result(main(written), *capsys.readouterr())

    return call


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installation of this test's own: no settings from outside, no embedding, an empty data folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ASAP_CHROMA_URL", raising=False)
    monkeypatch.setenv("ASAP_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("ASAP_EMBEDDING", "none")
    load_settings.cache_clear()
    yield tmp_path / "data"
    load_settings.cache_clear()


class Through(httpx.BaseTransport):
    """Hands requests of the client to the API in this process."""

    def __init__(self, served: Served) -> None:
        self._served = served

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        place = request.url.raw_path.decode()
        headers = {name: value for name, value in request.headers.items() if name != "host"}
        answer = self._served.client.request(request.method, place, content=request.read(), headers=headers)
        kept = {name: value for name, value in answer.headers.items() if name != "content-length"}
        return httpx.Response(answer.status_code, headers=kept, content=answer.content)


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Connect:
    """Lets the commands' client talk through this transport."""

    def replace(transport: httpx.BaseTransport) -> None:
        for module in (sessions, schedule, calibrate):
            monkeypatch.setattr(module, "connect", lambda _: Client("http://127.0.0.1", transport=transport))

    return replace


@pytest.fixture
def at_server(asap: Asap, served: Served, connect: Connect) -> Asap:
    """`asap` whose server is `served`."""
    connect(Through(served))
    return asap
